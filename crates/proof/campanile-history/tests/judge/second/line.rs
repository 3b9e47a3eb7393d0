//! A line and its fields.

use serde_json::Value;

use super::read::{Partition, Record};

/// A line as it was parsed, with fields of whatever type.
pub(super) struct Line(pub(super) Value);

impl Line {
    fn optional<T>(
        &self,
        name: &str,
        convert: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => convert(value).map(Some).ok_or(format!("{name} is {value}")),
        }
    }

    pub(super) fn maybe_text(&self, name: &str) -> Result<Option<String>, String> {
        self.optional(name, |value| value.as_str().map(str::to_owned))
    }

    pub(super) fn maybe_number(&self, name: &str) -> Result<Option<u64>, String> {
        self.optional(name, Value::as_u64)
    }

    pub(super) fn text(&self, name: &str) -> Result<String, String> {
        self.maybe_text(name)?.ok_or(format!("no {name}"))
    }

    pub(super) fn number(&self, name: &str) -> Result<u64, String> {
        self.maybe_number(name)?.ok_or(format!("no {name}"))
    }

    pub(super) fn integer(&self, name: &str) -> Result<i64, String> {
        self.optional(name, Value::as_i64)?.ok_or(format!("no {name}"))
    }

    pub(super) fn attempt(&self) -> Result<Option<u64>, String> {
        self.maybe_number("attempt")?
            .map(|attempt| u32::try_from(attempt).map(u64::from))
            .transpose()
            .map_err(|error| error.to_string())
    }

    pub(super) fn one_of(&self, name: &str, texts: &[&str]) -> Result<String, String> {
        let text = self.text(name)?;
        if texts.contains(&&*text) { Ok(text) } else { Err(format!("{name} is {text}")) }
    }

    pub(super) fn partition(&self, name: &str) -> Result<Partition, String> {
        let text = self.text(name)?;
        partition(&text).ok_or(format!("{name} is {text}"))
    }

    pub(super) fn record(&self, name: &str) -> Result<Record, String> {
        let text = self.text(name)?;
        record(&text).ok_or(format!("{name} is {text}"))
    }

    pub(super) fn check_header(&self) -> Result<(), String> {
        if self.number("version")? != 1 {
            return Err("another version".to_owned());
        }
        self.one_of("unit", &["us"]).map(|_| ())
    }

    pub(super) fn settings(&self) -> Result<Option<[Value; 5]>, String> {
        let Some(settings) = self.0.get("settings").filter(|settings| !settings.is_null()) else {
            return Ok(None);
        };
        if !settings.is_object() {
            return Err("settings are no object".to_owned());
        }
        let settings = Line(settings.clone());
        Ok(Some([
            settings.one_of("order", &["partition", "key", "none"])?.into(),
            settings.number("lock_ttl")?.into(),
            settings.maybe_number("max_hold")?.into(),
            settings.maybe_number("tolerance")?.unwrap_or(0).into(),
            match settings.maybe_text("transactions")? {
                Some(_) => settings.one_of("transactions", &["store", "broker"])?.into(),
                None => Value::Null,
            },
        ]))
    }
}

fn partition(text: &str) -> Option<Partition> {
    let (topic, number) = text.split_once('/')?;
    let number = number.parse().ok().filter(|number| *number >= 0)?;
    (!topic.is_empty()).then(|| Partition { topic: topic.to_owned(), number })
}

fn record(text: &str) -> Option<Record> {
    let (of, offset) = text.split_once('@')?;
    let offset = offset.parse().ok().filter(|offset| *offset >= 0)?;
    Some(Record { partition: partition(of)?, offset })
}
