//! Durations in configuration files.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

/// A duration that deserializes from a text such as `30s`, `500ms` or `1h 30m`. Not part of the
/// public contract.
#[derive(Clone, Copy, Debug)]
pub struct HumanDuration(pub Duration);

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = HumanDuration;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a duration such as \"30s\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<HumanDuration, E> {
                humantime::parse_duration(text)
                    .map(HumanDuration)
                    .map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_str(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Duration, String> {
        serde_json::from_str(json).map(|HumanDuration(it)| it).map_err(|error| error.to_string())
    }

    #[test]
    fn duration_deserializes_from_text_with_unit() {
        assert_eq!(parse(r#""30s""#), Ok(Duration::from_secs(30)));
        assert_eq!(parse(r#""500ms""#), Ok(Duration::from_millis(500)));
        assert_eq!(parse(r#""7d""#), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(parse(r#""1h 30m""#), Ok(Duration::from_secs(5400)));
    }

    #[test]
    fn duration_without_unit_is_an_error_with_example() {
        for json in ["30", r#""30""#, r#""30 parsecs""#] {
            let error = parse(json).unwrap_err();
            assert!(error.contains(r#"expected a duration such as "30s""#), "{error}");
        }
    }
}
