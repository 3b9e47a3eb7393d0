//! The state of each topic: whether it accepts messages.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use campanile_idempotency::Backoff;
use tokio::time::Instant;

/// The maximum number of messages in hand of a topic that has acknowledged none yet. It may take
/// long to refuse them, and the other topics must not wait for it.
const AT_FIRST: usize = 4;

/// The number of refusals in a row after which a topic accepts no messages for now. A smaller
/// number may be the messages' fault.
const IN_A_ROW: u32 = 16;

/// The results of each topic's messages. A topic that accepts none gets one message at a time,
/// after a backoff, until it acknowledges one.
#[derive(Debug)]
pub(super) struct Topics {
    backoff: Backoff,
    topics: HashMap<Arc<str>, Topic>,
}

#[derive(Debug, Default)]
struct Topic {
    in_hand: usize,
    has_acknowledged: bool,
    /// Refusals since the last acknowledgment.
    refusals: u32,
    /// When the topic is tried again.
    until: Option<Instant>,
}

impl Topics {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self { backoff, topics: HashMap::new() }
    }

    /// Whether another message of the topic may be taken in hand.
    pub(super) fn has_room(&self, topic: &str, now: Instant) -> bool {
        self.topics.get(topic).is_none_or(|topic| topic.has_room(now))
    }

    pub(super) fn take(&mut self, topic: &Arc<str>) {
        self.topics.entry(topic.clone()).or_default().in_hand += 1;
    }

    pub(super) fn let_go(&mut self, topic: &Arc<str>) {
        self.topics.entry(topic.clone()).or_default().in_hand -= 1;
    }

    /// Records that no messages are in hand.
    pub(super) fn let_all_go(&mut self) {
        self.topics.values_mut().for_each(|topic| topic.in_hand = 0);
    }

    /// Records an acknowledgment. Returns whether the topic accepts more messages than before.
    pub(super) fn acknowledge(&mut self, topic: &Arc<str>) -> bool {
        let topic = self.topics.entry(topic.clone()).or_default();
        let took_none = !topic.takes();
        (topic.has_acknowledged, topic.refusals, topic.until) = (true, 0, None);
        took_none
    }

    /// Records a refusal.
    pub(super) fn refuse(&mut self, topic: &Arc<str>, now: Instant) {
        let topic = self.topics.entry(topic.clone()).or_default();
        topic.refusals = topic.refusals.saturating_add(1);
        if !topic.takes() {
            topic.until = Some(now + self.backoff.delay(topic.refusals));
        }
    }

    /// Whether the topic accepts its messages, apart from a few refused ones.
    pub(super) fn takes(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(Topic::takes)
    }

    /// Whether the topic's next trial should use a message that it has not refused yet. Either the
    /// topic or the refused message may be at fault, so trials alternate between both kinds.
    pub(super) fn is_for_another(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|topic| !topic.takes() && topic.refusals % 2 == 1)
    }

    /// Lists the topics of which no message may be taken.
    pub(super) fn full(&self, now: Instant) -> Vec<String> {
        let full = self.topics.iter().filter(|(_, topic)| !topic.has_room(now));
        full.map(|(name, _)| name.to_string()).collect()
    }

    /// The next time after `now` at which a topic is tried again.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let idle = self.topics.values().filter(|topic| topic.in_hand == 0);
        idle.filter_map(|topic| topic.until).filter(|&until| until > now).min()
    }
}

impl Topic {
    fn takes(&self) -> bool {
        self.has_acknowledged && self.refusals < IN_A_ROW
    }

    fn has_room(&self, now: Instant) -> bool {
        match self.until {
            _ if self.takes() => true,
            None => self.in_hand < AT_FIRST,
            Some(until) => self.in_hand == 0 && until <= now,
        }
    }
}

/// The backoff of refused messages.
pub(super) fn backoff() -> Backoff {
    let (first, last) = (Duration::from_millis(100), Duration::from_secs(30));
    Backoff::new(first, last).expect("100 ms < 30 s")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any backoff.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_topic_that_takes_nothing_is_tried_by_one_at_a_time_after_a_back_off() {
        let (mut topics, now, bills) = (Topics::new(backoff()), Instant::now(), "bills".into());
        (0..AT_FIRST).for_each(|_| topics.take(&bills));
        assert_eq!(topics.full(now), ["bills"]);
        (0..AT_FIRST).for_each(|_| topics.let_go(&bills));
        topics.refuse(&bills, now);
        let next = topics.next(now - LONG).unwrap();
        assert!(next <= now + LONG);
        assert!(topics.has_room("bills", next));
        topics.take(&bills);
        assert_eq!((topics.has_room("bills", next), topics.next(now - LONG)), (false, None));
        topics.let_go(&bills);
        assert!(topics.acknowledge(&bills), "others may go on");
        assert!(topics.has_room("bills", now));
        assert!(!topics.acknowledge(&bills));
    }

    #[test]
    fn a_topic_that_takes_some_is_not_held_up_by_what_it_refuses() {
        let (mut topics, now, bills) = (Topics::new(backoff()), Instant::now(), "bills".into());
        topics.acknowledge(&bills);
        for _ in 1..IN_A_ROW {
            topics.refuse(&bills, now);
        }
        assert!(topics.takes("bills") && topics.full(now).is_empty());
        topics.refuse(&bills, now);
        assert!(!topics.takes("bills"));
        let next = topics.next(now - LONG).unwrap();
        assert!(topics.has_room("bills", next));
    }

    #[test]
    fn it_is_tried_by_what_it_has_refused_and_by_another_in_turn() {
        let (mut topics, now, bills) = (Topics::new(backoff()), Instant::now(), "bills".into());
        let mut turns = Vec::new();
        for _ in 0..4 {
            topics.refuse(&bills, now);
            turns.push(topics.is_for_another("bills"));
        }
        assert_eq!(turns, [true, false, true, false]);
    }
}
