//! The topic of a group's payments, which its operator deletes, creates again and changes.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use campanile_test::Message;
use campanile_test::history::TOPIC_HEADER;

use crate::PARTITIONS;

/// A topic. No record is sent, and it does not change, while it is locked.
pub(crate) struct SharedTopic(Mutex<Topic>);

pub(crate) struct Topic {
    /// Its names in the history, and from when on: one that is deleted and created again has another name.
    names: Vec<(u64, String)>,
    /// The names by the ids of the topics.
    by_id: HashMap<String, String>,
    pub(crate) partitions: i32,
    /// The number of records that were sent since the topic was created.
    pub(crate) records: usize,
    /// How many records are sent next, whatever the rate is.
    pub(crate) burst: usize,
}

impl SharedTopic {
    pub(crate) fn new(name: &str) -> Self {
        let (names, by_id) = (vec![(0, name.to_owned())], HashMap::new());
        Self(Mutex::new(Topic { names, by_id, partitions: PARTITIONS, records: 0, burst: 0 }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Topic> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Topic {
    /// Finds the name in the history at this time.
    pub(crate) fn name_at(&self, at: u64) -> &str {
        let (_, name) = self.names.iter().rfind(|(from, _)| *from <= at).expect("from 0 on");
        name
    }

    /// Finds the name in the history of the topic for which an offset was committed. The commit may have been
    /// overtaken by the recreation; its consumer then finds the id of the old topic in its metadata.
    pub(crate) fn name_of(&self, metadata: &str, at: u64) -> &str {
        let id = metadata.strip_prefix("topic-id=").and_then(|ids| ids.split(' ').next());
        let name = id.and_then(|id| self.by_id.get(id));
        name.map_or_else(|| self.name_at(at), String::as_str)
    }

    /// Sets the id of the topic.
    pub(crate) fn set_id(&mut self, id: &str) {
        self.by_id.insert(id.to_owned(), self.name().to_owned());
    }

    /// The name in the history.
    pub(crate) fn name(&self) -> &str {
        self.name_at(u64::MAX)
    }

    /// How often the topic was created.
    pub(crate) fn generation(&self) -> usize {
        self.names.len()
    }

    /// Begins anew, as a topic without records, which is created after this time.
    pub(crate) fn recreate(&mut self, at: u64, partitions: i32) {
        let name = format!("{}~{}", self.names[0].1, self.names.len() + 1);
        self.names.push((at, name));
        (self.partitions, self.records) = (partitions, 0);
    }

    /// Creates a message to this topic.
    pub(crate) fn message(&self) -> Message {
        let message = Message::to(&*self.names[0].1);
        match self.names.len() {
            1 => message,
            _ => message.header(TOPIC_HEADER, self.name()),
        }
    }
}
