//! Fuzz target: what a process of the application answers at its endpoint for Prometheus.

use std::fmt::Write;

use super::exposition::{Sample, parse};

/// A sample that is read is written and read as the same sample.
#[test]
fn exposition() {
    bolero::check!(name = "exposition").for_each(|bytes: &[u8]| {
        let Ok(text) = str::from_utf8(bytes) else { return };
        let samples: Vec<_> = parse(text, "campanile_").collect();
        assert!(samples.len() <= text.lines().count());
        for sample in &samples {
            assert!(sample.name.starts_with("campanile_"));
            let has_plain_names = sample.labels.iter().all(|(name, _)| is_plain(name));
            if has_plain_names && !sample.value.is_nan() {
                let again: Vec<_> = parse(&write(sample), "campanile_").collect();
                assert_eq!(again, std::slice::from_ref(sample));
            }
        }
    });
}

/// Checks whether the name is one that a label can have.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn write(Sample { name, labels, value }: &Sample) -> String {
    let mut text = format!("{name}{{");
    for (name, value) in labels {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(text, "{name}=\"{value}\",");
    }
    let _ = writeln!(text, "}} {value}");
    text
}
