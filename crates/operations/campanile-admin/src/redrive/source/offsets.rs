//! The offsets of the group: where to continue, and what is handled.

use std::collections::HashMap;
use std::time::Duration;

use campanile_core::Record;
use campanile_kafka::{commit_metadata, committed_topic_id};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, StreamConsumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::{Offset, TopicPartitionList};
use tokio::time::Instant;

use super::Source;
use super::calls::READ;
use super::context::Context;
use crate::AdminError;
use crate::kafka::{Context as ObserverContext, committed_offsets};

impl Source {
    /// Fetches the offsets at which the group continues to read these partitions, as far as it has some.
    pub(super) async fn committed(
        &self,
        list: TopicPartitionList,
    ) -> Result<Vec<(i32, Option<i64>)>, AdminError> {
        let timeout = self.timeout;
        self.positions(move |consumer| consumer.committed_offsets(list.clone(), timeout)).await
    }

    /// As [`committed`](Self::committed) of all partitions, without the consumer of the letters: only an event
    /// says that the user may not use the group, and waiting for it would also receive letters.
    pub(super) async fn observed(
        &self,
        observer: BaseConsumer<ObserverContext>,
        partitions: usize,
    ) -> Result<Vec<(i32, Option<i64>)>, AdminError> {
        let (list, timeout) = (self.list(partitions), self.timeout);
        self.positions(move |_| committed_offsets(&observer, &list, timeout)).await
    }

    async fn positions(
        &self,
        fetch: impl Fn(&StreamConsumer<Context>) -> KafkaResult<TopicPartitionList>
        + Send
        + Sync
        + 'static,
    ) -> Result<Vec<(i32, Option<i64>)>, AdminError> {
        let committed = self.call("cannot read the group's offsets", READ, fetch).await?;
        let next = |partition, offset| {
            let committed_id = committed_topic_id(&committed, &self.topic, partition);
            match (offset, committed_id, &self.topic_id) {
                // Other letters have these offsets.
                (_, Some(old_id), Some(new_id)) if *old_id != **new_id => {
                    let (topic, new_id) = (&*self.topic, &**new_id);
                    tracing::warn!(
                        topic,
                        partition,
                        old_id,
                        new_id,
                        "the topic was deleted and recreated; starting at its first letter"
                    );
                    None
                }
                (Offset::Offset(offset), ..) => Some(offset),
                _ => None,
            }
        };
        let elements = committed.elements();
        Ok(elements.iter().map(|it| (it.partition(), next(it.partition(), it.offset()))).collect())
    }

    /// Starts all partitions where the group continues, and notes what earlier runs had handled.
    pub(super) fn resume(&mut self, mut committed: Vec<(i32, Option<i64>)>) {
        for (partition, next) in &mut committed {
            let (first, end) = self.bounds[partition];
            // Other letters have these offsets.
            if let Some(committed) = next.take_if(|next| *next > end) {
                tracing::warn!(
                    topic = &*self.topic,
                    partition,
                    committed,
                    end,
                    "the group's offset is beyond the end: the topic was created anew, or has lost \
                     letters; starting at the first one"
                );
            }
            // Another group, such as one with a filter, may have handled them.
            if let Some(deleted) = next.map(|next| first - next).filter(|deleted| *deleted > 0) {
                tracing::warn!(
                    topic = %self.topic, partition, first, deleted,
                    "the topic has deleted letters that this group had not handled; raise \
                     `retention.ms` of the topic before more are deleted"
                );
            }
            let handled = next.map_or(0, |next| next - first);
            self.handled_before += u64::try_from(handled).unwrap_or(0);
        }
        self.start_partitions(committed);
    }

    /// Checks whether the group has handled all letters of the partitions that are not assigned to this
    /// process. If not, another process is handling them, or it was killed, and the partitions are
    /// assigned to this one once the group has removed it.
    ///
    /// # Errors
    /// Fails if the group has made no progress for longer than `patience` and the timeout.
    pub(in crate::redrive) async fn others_are_done(
        &mut self,
        patience: Duration,
    ) -> Result<bool, AdminError> {
        if self.bounds.keys().all(|partition| self.partitions.contains_key(partition)) {
            return Ok(true);
        }
        let committed = self.committed(self.list(self.bounds.len())).await?;
        let left = |&(partition, next): &(i32, Option<i64>)| {
            let (first, end) = self.bounds[&partition];
            (end - next.unwrap_or(first)).max(0)
        };
        let others = committed.iter().filter(|(it, _)| !self.partitions.contains_key(it));
        if others.map(left).all(|left| left == 0) {
            return Ok(true);
        }
        let (left, now) = (committed.iter().map(left).sum(), Instant::now());
        if self.progress.0 != left {
            self.progress = (left, now);
        }
        let limit = self.timeout.saturating_add(patience);
        if now - self.progress.1 < limit {
            return Ok(false);
        }
        let waited = format!(
            "no progress for {limit:?}; stop the other members of the group, or use another group"
        );
        Err(self.error(&format!("{left} letters are left to other runs of the group"), waited))
    }

    /// A list of the topic's partitions.
    fn list(&self, partitions: usize) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for partition in (0..).take(partitions) {
            list.add_partition(&self.topic, partition);
        }
        list
    }

    /// Notes that this letter, and all before it in its partition, need not be read again, except
    /// for those that were deferred.
    pub(in crate::redrive) fn set_handled(&mut self, letter: &Record) {
        if let Some(state) = self.partitions.get_mut(&letter.partition()) {
            state.handled = state.handled.max(letter.offset() + 1);
        }
    }

    /// Notes that the next run has to read this letter again.
    pub(in crate::redrive) fn set_deferred(&mut self, letter: &Record) {
        if let Some(state) = self.partitions.get_mut(&letter.partition()) {
            state.deferred = state.deferred.min(letter.offset());
        }
    }

    /// Commits the offsets of the letters that were handled, but none of these pending letters. Once all
    /// letters of a partition are handled, commits its end, by which other processes see that.
    pub(in crate::redrive) async fn commit(
        &mut self,
        pending: impl Iterator<Item = &Record>,
    ) -> Result<(), AdminError> {
        let mut first_pending = HashMap::new();
        for letter in pending {
            let first = first_pending.entry(letter.partition()).or_insert(i64::MAX);
            *first = letter.offset().min(*first);
        }
        let mut list = TopicPartitionList::new();
        let mut offsets = Vec::new();
        for (&partition, state) in &self.partitions {
            let pending = first_pending.get(&partition).copied().unwrap_or(i64::MAX);
            let is_done = state.is_read && state.handled >= state.read;
            let handled = if is_done { state.handled.max(state.end) } else { state.handled };
            let offset = handled.min(state.deferred).min(pending);
            if offset > state.committed {
                let mut element = list.add_partition(&self.topic, partition);
                let added = element.set_offset(Offset::Offset(offset));
                added.map_err(|error| self.error("cannot commit offsets", error))?;
                if let Some(id) = &self.topic_id {
                    element.set_metadata(commit_metadata(id));
                }
                offsets.push((partition, offset));
            }
        }
        if offsets.is_empty() {
            return Ok(());
        }
        let commit = self.call("cannot commit offsets", READ, move |consumer| {
            match consumer.commit(&list, CommitMode::Sync) {
                // The new owner of the partitions handles these letters once more.
                Err(error) if is_reassigned(&error) => Ok(()),
                result => result,
            }
        });
        commit.await?;
        for (partition, offset) in offsets {
            if let Some(state) = self.partitions.get_mut(&partition) {
                state.committed = offset;
            }
        }
        Ok(())
    }
}

/// Whether the partitions were assigned to another process.
fn is_reassigned(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(Code::RebalanceInProgress | Code::IllegalGeneration | Code::UnknownMemberId)
    )
}
