//! The queue of messages of one key.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use campanile_core::{Output, Timestamp, millis};
use tokio_postgres::{Error, Row};

/// A message, as it is in the table.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) id: i64,
    pub(super) output: Output,
}

/// Messages of one topic and key, which are published one after the other. Never empty.
#[derive(Debug)]
pub(super) struct Lane(VecDeque<Message>);

impl Message {
    pub(super) fn read(row: &Row) -> Result<Self, Error> {
        let bytes = |bytes: Option<Vec<u8>>| bytes.map(Bytes::from);
        let mut output = Output::to(row.try_get::<_, &str>("topic")?);
        output.key = bytes(row.try_get("key")?);
        output.payload = bytes(row.try_get("payload")?);
        output.timestamp = millis::time(row.try_get("millis")?).map(Timestamp::CreateTime);
        let names: Vec<String> = row.try_get("header_names")?;
        let values: Vec<Option<Vec<u8>>> = row.try_get("header_values")?;
        output.headers = names.into_iter().zip(values.into_iter().map(bytes)).collect();
        Ok(Self { id: row.try_get("id")?, output })
    }
}

impl Lane {
    /// The maximum number of messages in a lane, so that a key with many messages leaves room for
    /// others.
    const MOST: usize = 100;

    /// Groups messages into one lane for each key, and one for each message without a key. Messages
    /// that exceed a lane's maximum are left out.
    pub(super) fn group(messages: Vec<Message>) -> Vec<Self> {
        let mut lanes = Vec::<Self>::new();
        let mut of_key = HashMap::<(Arc<str>, Bytes), usize>::new();
        for message in messages {
            let Output { topic, key, .. } = &message.output;
            let place = match key {
                Some(key) => *of_key.entry((topic.clone(), key.clone())).or_insert(lanes.len()),
                None => lanes.len(),
            };
            match lanes.get_mut(place) {
                Some(lane) if lane.0.len() < Self::MOST => lane.0.push_back(message),
                Some(_) => {}
                None => lanes.push(Self([message].into())),
            }
        }
        lanes
    }

    /// Drops all messages but the first.
    pub(super) fn only_first(mut self) -> Self {
        self.0.truncate(1);
        self
    }

    pub(super) fn first(&self) -> &Message {
        self.0.front().expect("a lane is never empty")
    }

    /// Removes the first message. Returns it with the lane of the others, if there are any.
    pub(super) fn advance(mut self) -> (Message, Option<Self>) {
        let first = self.0.pop_front().expect("a lane is never empty");
        (first, Some(self).filter(|lane| !lane.0.is_empty()))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Message> {
        self.0.iter()
    }
}
