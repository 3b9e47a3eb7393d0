//! The partitions that are assigned.

use std::collections::HashMap;
use std::sync::Arc;

use rdkafka::TopicPartitionList;

use crate::budget::Stock;
use crate::retry_topics::Rungs;
use crate::slot::{Slot, SlotId};

/// The partitions of this consumer, each with its present slot.
pub(super) struct Assignment {
    topics: HashMap<Arc<str>, HashMap<i32, Held>>,
    rungs: Rungs,
    total: Arc<Stock>,
    next: u64,
    /// Whether there ever was one.
    pub(super) started: bool,
}

/// A partition that is assigned.
pub(super) struct Held {
    pub(super) slot: Arc<Slot>,
    pub(super) paused: bool,
    /// The mark of the last commit that was sent.
    pub(super) sent: Option<i64>,
    /// The mark of the last commit that was acknowledged.
    pub(super) acknowledged: Option<i64>,
}

impl Assignment {
    pub(super) fn new(rungs: Rungs, total: Arc<Stock>) -> Self {
        Self { topics: HashMap::new(), rungs, total, next: 0, started: false }
    }

    /// New slots for these partitions.
    pub(super) fn assign(&mut self, partitions: &TopicPartitionList) -> Vec<Arc<Slot>> {
        self.started = true;
        let assign = |(topic, partition): (String, i32)| {
            let topic: Arc<str> = topic.into();
            let rung = self.rungs.of(&topic).cloned();
            let (id, total) = (SlotId(self.next), self.total.clone());
            let slot = Arc::new(Slot::new(id, topic.clone(), partition, rung, total));
            self.next += 1;
            let held = Held { slot: slot.clone(), paused: false, sent: None, acknowledged: None };
            self.topics.entry(topic).or_default().insert(partition, held);
            slot
        };
        names(partitions).map(assign).collect()
    }

    /// Ends the slots of these partitions and gives what was held.
    pub(super) fn revoke(&mut self, partitions: &TopicPartitionList) -> Vec<Held> {
        let revoke = |(topic, partition): (String, i32)| {
            let held = self.topics.get_mut(&*topic)?.remove(&partition)?;
            held.slot.end();
            Some(held)
        };
        names(partitions).filter_map(revoke).collect()
    }

    pub(super) fn slot(&self, topic: &str, partition: i32) -> Option<&Arc<Slot>> {
        Some(&self.topics.get(topic)?.get(&partition)?.slot)
    }

    pub(super) fn get_mut(&mut self, topic: &str, partition: i32) -> Option<&mut Held> {
        self.topics.get_mut(topic)?.get_mut(&partition)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Held> {
        self.topics.values_mut().flat_map(HashMap::values_mut)
    }

    /// How many are of retry topics.
    pub(super) fn retries(&self) -> usize {
        let held = self.topics.values().flat_map(HashMap::values);
        held.filter(|held| held.slot.rung.is_some()).count()
    }

    pub(super) fn len(&self) -> usize {
        self.topics.values().map(HashMap::len).sum()
    }
}

fn names(partitions: &TopicPartitionList) -> impl Iterator<Item = (String, i32)> {
    let elements = partitions.elements();
    elements.into_iter().map(|element| (element.topic().to_owned(), element.partition()))
}

/// The list of these partitions, as librdkafka wants it.
pub(super) fn list<'a>(slots: impl IntoIterator<Item = &'a Slot>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for slot in slots {
        list.add_partition(&slot.topic, slot.partition);
    }
    list
}
