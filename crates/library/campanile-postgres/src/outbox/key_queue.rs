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
pub(super) struct KeyQueue(VecDeque<Message>);

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

impl KeyQueue {
    /// The maximum number of messages in a queue, so that a key with many messages leaves room for
    /// others.
    const MAX_MESSAGES: usize = 100;

    /// Groups messages into one queue for each key, and one for each message without a key.
    /// Messages that exceed a queue's maximum are left out.
    pub(super) fn group(messages: Vec<Message>) -> Vec<Self> {
        let mut queues = Vec::<Self>::new();
        let mut by_key = HashMap::<(Arc<str>, Bytes), usize>::new();
        for message in messages {
            let Output { topic, key, .. } = &message.output;
            let index = match key {
                Some(key) => *by_key.entry((topic.clone(), key.clone())).or_insert(queues.len()),
                None => queues.len(),
            };
            match queues.get_mut(index) {
                Some(queue) if queue.0.len() < Self::MAX_MESSAGES => queue.0.push_back(message),
                Some(_) => {}
                None => queues.push(Self([message].into())),
            }
        }
        queues
    }

    /// Drops all messages but the first.
    pub(super) fn truncate_to_first(mut self) -> Self {
        self.0.truncate(1);
        self
    }

    pub(super) fn first(&self) -> &Message {
        self.0.front().expect("a queue is never empty")
    }

    /// Removes the first message. Returns it with the queue of the others, if there are any.
    pub(super) fn pop_first(mut self) -> (Message, Option<Self>) {
        let first = self.0.pop_front().expect("a queue is never empty");
        (first, Some(self).filter(|queue| !queue.0.is_empty()))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Message> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_grouped_by_key_up_to_a_maximum() {
        let message = |id, key: Option<&'static str>| {
            let output = Output::to("bills");
            Message { id, output: key.into_iter().fold(output, Output::key) }
        };
        let mut messages: Vec<_> = (0..102).map(|id| message(id, Some("a"))).collect();
        messages.extend([message(102, None), message(103, Some("b")), message(104, None)]);
        messages.push(message(105, Some("b")));
        let ids = |queue: &KeyQueue| queue.iter().map(|message| message.id).collect::<Vec<_>>();
        let queues: Vec<_> = KeyQueue::group(messages).iter().map(ids).collect();
        assert_eq!(queues, [(0..100).collect(), vec![102], vec![103, 105], vec![104]]);
    }
}
