//! The state of each topic: whether it accepts messages.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use campanile_idempotency::Backoff;
use tokio::time::Instant;

/// The maximum number of buffered messages of a topic that has acknowledged none yet. It may take
/// long to refuse them, and the other topics must not wait for it.
const MAX_BEFORE_FIRST_ACK: usize = 4;

/// The number of refusals in a row after which a topic accepts no messages for now. A smaller
/// number may be the messages' fault.
const MAX_CONSECUTIVE_REFUSALS: u32 = 16;

/// The results of each topic's messages. A topic that accepts none gets one message at a time,
/// after a backoff, until it acknowledges one.
#[derive(Debug)]
pub(super) struct Topics {
    backoff: Backoff,
    topics: HashMap<Arc<str>, Topic>,
}

#[derive(Debug, Default)]
struct Topic {
    buffered: usize,
    has_acknowledged: bool,
    /// Refusals since the last acknowledgment.
    refusals: u32,
    /// When the topic is tried again.
    retry_at: Option<Instant>,
}

impl Topics {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self { backoff, topics: HashMap::new() }
    }

    /// Whether another message of the topic may be buffered.
    pub(super) fn has_room(&self, topic: &str, now: Instant) -> bool {
        self.topics.get(topic).is_none_or(|topic| topic.has_room(now))
    }

    pub(super) fn reserve(&mut self, topic: &Arc<str>) {
        self.topics.entry(topic.clone()).or_default().buffered += 1;
    }

    pub(super) fn release(&mut self, topic: &Arc<str>) {
        self.topics.entry(topic.clone()).or_default().buffered -= 1;
    }

    /// Records that no messages are buffered.
    pub(super) fn release_all(&mut self) {
        self.topics.values_mut().for_each(|topic| topic.buffered = 0);
    }

    /// Records an acknowledgment. Returns whether the topic accepts more messages than before.
    pub(super) fn acknowledge(&mut self, topic: &Arc<str>) -> bool {
        let topic = self.topics.entry(topic.clone()).or_default();
        let was_failing = !topic.is_healthy();
        (topic.has_acknowledged, topic.refusals, topic.retry_at) = (true, 0, None);
        was_failing
    }

    /// Records a refusal.
    pub(super) fn refuse(&mut self, topic: &Arc<str>, now: Instant) {
        let topic = self.topics.entry(topic.clone()).or_default();
        topic.refusals = topic.refusals.saturating_add(1);
        if !topic.is_healthy() {
            topic.retry_at = Some(now + self.backoff.delay(topic.refusals));
        }
    }

    /// Whether the topic accepts its messages, apart from a few refused ones.
    pub(super) fn is_healthy(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(Topic::is_healthy)
    }

    /// Whether the topic's next trial should use a message that it has not refused yet. Either the
    /// topic or the refused message may be at fault, so trials alternate between both kinds.
    pub(super) fn wants_other_message(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|topic| !topic.is_healthy() && topic.refusals % 2 == 1)
    }

    /// Lists the topics of which no message may be taken.
    pub(super) fn full(&self, now: Instant) -> Vec<String> {
        let full = self.topics.iter().filter(|(_, topic)| !topic.has_room(now));
        full.map(|(name, _)| name.to_string()).collect()
    }

    /// The next time after `now` at which a topic is tried again.
    pub(super) fn next_retry(&self, now: Instant) -> Option<Instant> {
        let idle = self.topics.values().filter(|topic| topic.buffered == 0);
        idle.filter_map(|topic| topic.retry_at).filter(|&retry_at| retry_at > now).min()
    }
}

impl Topic {
    fn is_healthy(&self) -> bool {
        self.has_acknowledged && self.refusals < MAX_CONSECUTIVE_REFUSALS
    }

    fn has_room(&self, now: Instant) -> bool {
        match self.retry_at {
            _ if self.is_healthy() => true,
            None => self.buffered < MAX_BEFORE_FIRST_ACK,
            Some(retry_at) => self.buffered == 0 && retry_at <= now,
        }
    }
}

/// The backoff of refused messages.
pub(super) fn backoff() -> Backoff {
    let (first, last) = (Duration::from_millis(100), Duration::from_secs(30));
    Backoff::new(first, last).expect("100 ms < 30 s")
}

/// Longer than any backoff.
#[cfg(test)]
pub(super) const LONGER_THAN_BACKOFF: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_topic_gets_one_message_at_a_time_after_backoff() {
        let (mut topics, now, bills) = (Topics::new(backoff()), Instant::now(), "bills".into());
        (0..MAX_BEFORE_FIRST_ACK).for_each(|_| topics.reserve(&bills));
        assert_eq!(topics.full(now), ["bills"]);
        (0..MAX_BEFORE_FIRST_ACK).for_each(|_| topics.release(&bills));
        topics.refuse(&bills, now);
        let next = topics.next_retry(now - LONGER_THAN_BACKOFF).unwrap();
        assert!(next <= now + LONGER_THAN_BACKOFF);
        assert!(topics.has_room("bills", next));
        topics.reserve(&bills);
        assert_eq!(
            (topics.has_room("bills", next), topics.next_retry(now - LONGER_THAN_BACKOFF)),
            (false, None)
        );
        topics.release(&bills);
        assert!(topics.acknowledge(&bills), "others may continue");
        assert!(topics.has_room("bills", now));
        assert!(!topics.acknowledge(&bills));
    }

    #[test]
    fn healthy_topic_is_not_blocked_by_a_few_refusals() {
        let (mut topics, now, bills) = (Topics::new(backoff()), Instant::now(), "bills".into());
        topics.acknowledge(&bills);
        for _ in 1..MAX_CONSECUTIVE_REFUSALS {
            topics.refuse(&bills, now);
        }
        assert!(topics.is_healthy("bills") && topics.full(now).is_empty());
        topics.refuse(&bills, now);
        assert!(!topics.is_healthy("bills"));
        let next = topics.next_retry(now - LONGER_THAN_BACKOFF).unwrap();
        assert!(topics.has_room("bills", next));
    }

    #[test]
    fn failing_topic_is_retried_after_half_a_minute_at_most() {
        let (mut topics, now, bills) = (Topics::new(backoff()), Instant::now(), "bills".into());
        let mut longest = Duration::ZERO;
        for _ in 0..1000 {
            topics.refuse(&bills, now);
            let retry_at = topics.next_retry(now).unwrap_or(now);
            longest = longest.max(retry_at - now);
            assert_eq!(topics.next_retry(retry_at), None);
        }
        let max = Duration::from_secs(30);
        assert!(longest > max / 2 && longest <= max, "{longest:?}");
    }

    #[test]
    fn failing_topic_alternates_refused_and_other_messages() {
        let (mut topics, now, bills) = (Topics::new(backoff()), Instant::now(), "bills".into());
        let mut turns = Vec::new();
        for _ in 0..4 {
            topics.refuse(&bills, now);
            turns.push(topics.wants_other_message("bills"));
        }
        assert_eq!(turns, [true, false, true, false]);
    }
}
