//! Fuzz target: the lines of a history.

use std::collections::HashSet;
use std::fmt;

use campanile_history::{Coordinates, Event, Header, History, Partition};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::agreement::compare;

/// Both judges read any bytes, or neither, and find the same. What is read is written as the same.
#[test]
fn history() {
    bolero::check!(name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/history")).for_each(
        |bytes: &[u8]| {
            let Ok(text) = str::from_utf8(bytes) else { return };
            let is_undefined = |line| {
                serde_json::from_str::<UniqueNames>(line).is_err_and(|error| error.is_data())
            };
            if !text.lines().any(is_undefined)
                && let Err(disagreement) = compare(&[("fuzz.jsonl", text)])
            {
                panic!("{disagreement}");
            }
            text.lines().for_each(check_line);
            if let Err(error) = History::parse([("fuzz.jsonl", text)]) {
                assert!(
                    ["fuzz.jsonl", "history"].iter().any(|it| error.to_string().starts_with(it))
                );
            }
        },
    );
}

fn check_line(line: &str) {
    if let Ok(event) = serde_json::from_str::<Event>(line) {
        let written = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&written).unwrap(), event);
    }
    if let Ok(header) = serde_json::from_str::<Header>(line) {
        let written = serde_json::to_string(&header).unwrap();
        assert_eq!(serde_json::from_str::<Header>(&written).unwrap(), header);
    }
    if let Ok(at) = line.parse::<Coordinates>() {
        assert_eq!(at.to_string().parse(), Ok(at));
    }
    if let Ok(partition) = line.parse::<Partition>() {
        assert_eq!(partition.to_string().parse(), Ok(partition));
    }
}

/// A value of JSON in which no object has a name twice. The format leaves open what others mean.
struct UniqueNames;

impl<'de> Deserialize<'de> for UniqueNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for UniqueNames {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut names = HashSet::new();
        while let Some((name, Self)) = map.next_entry::<String, Self>()? {
            if !names.insert(name) {
                return Err(Error::custom("a name occurs twice"));
            }
        }
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self, A::Error> {
        while seq.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E: Error>(self) -> Result<Self, E> {
        Ok(self)
    }
}
