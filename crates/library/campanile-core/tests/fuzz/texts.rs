//! Texts from headers, settings and options.

use campanile_core::{Coordinates, HumanDuration, Namespace, TraceContext};

/// A text is what its value displays as, or is refused with an error.
#[test]
fn texts() {
    bolero::check!(name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/texts")).for_each(
        |bytes: &[u8]| {
            let Ok(text) = str::from_utf8(bytes) else { return };
            check_trace(text);
            check_coordinates(text);
            check_namespace(text);
            check_duration(text);
        },
    );
}

fn check_trace(text: &str) {
    let Ok(trace) = text.parse::<TraceContext>() else { return };
    assert_eq!(trace.to_string().parse(), Ok(trace));
    assert!(trace.trace_id() > 0 && trace.span_id() > 0);
    if text.starts_with("00") {
        assert_eq!(trace.to_string(), text);
    } else {
        assert_eq!(&trace.to_string()[2..], &text[2..55]);
    }
}

fn check_coordinates(text: &str) {
    match text.parse::<Coordinates>() {
        Ok(at) => {
            assert!(at.partition >= 0 && at.offset >= 0 && !at.topic.is_empty());
            assert!(text.starts_with(&format!("{}/", at.topic)));
            assert_eq!(at.to_string().parse(), Ok(at));
        }
        Err(error) => assert!(error.to_string().contains("topic/partition@offset")),
    }
}

fn check_namespace(text: &str) {
    match Namespace::try_from(text) {
        Ok(namespace) => {
            assert_eq!(namespace.to_string(), text);
            assert!((1..=Namespace::MAX_LEN).contains(&text.len()) && text.is_ascii());
        }
        Err(error) => assert!(error.to_string().contains("[a-z0-9._-]")),
    }
}

/// A duration of a configuration file is a string with a number.
fn check_duration(text: &str) {
    let has_number = text.contains(|it: char| it.is_ascii_digit());
    assert!(serde_json::from_value::<HumanDuration>(text.into()).is_err() || has_number);
}
