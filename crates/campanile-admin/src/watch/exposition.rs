//! The text format of Prometheus, as far as counters and gauges need it.

/// A value of a series.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) name: String,
    pub(super) labels: Vec<(String, String)>,
    pub(super) value: f64,
}

impl Sample {
    pub(super) fn label(&self, name: &str) -> Option<&str> {
        let label = self.labels.iter().find(|(label, _)| label == name);
        label.map(|(_, value)| value.as_str())
    }
}

/// Parses the samples with names that begin with `prefix`. Lines that are no samples are left out.
pub(super) fn parse<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = Sample> + 'a {
    text.lines().filter(move |line| line.starts_with(prefix)).filter_map(parse_line)
}

fn parse_line(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' ', '\t'])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = parse_labels(inner, &mut labels)?;
    }
    // A time may follow.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Parses `a="b",c="d"}`. Returns what follows.
fn parse_labels<'a>(mut rest: &'a str, labels: &mut Vec<(String, String)>) -> Option<&'a str> {
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some(after);
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = quoted.char_indices();
        let end = loop {
            match chars.next()? {
                (index, '"') => break index,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        labels.push((name.trim().to_owned(), value));
        rest = &quoted[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_parsed_and_other_lines_skipped() {
        let text = "# HELP a_total what {it=\"counts\"}\n\
            # TYPE a_total counter\n\
            a_total 3\n\
            a_total{x=\"1\",y=\"a\\\"b\\\\c\\nd}\",} 4.5 1700000000\n\
            a_gauge{} +Inf\n\
            b_total 9\n\
            a_broken{x=\"1\n\
            a_without_value\n\
            a_text{x=\"1\"} seven\n";
        let samples: Vec<_> = parse(text, "a_").collect();
        assert_eq!(samples.len(), 3, "{samples:?}");
        assert_eq!((samples[0].name.as_str(), samples[0].value), ("a_total", 3.0));
        assert_eq!(samples[1].label("y"), Some("a\"b\\c\nd}"));
        assert_eq!((samples[1].label("x"), samples[1].value), (Some("1"), 4.5));
        assert_eq!(samples[2].value, f64::INFINITY);
    }
}
