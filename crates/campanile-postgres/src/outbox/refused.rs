//! Messages that were refused.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use campanile_idempotency::Backoff;
use tokio::time::Instant;

/// Of a topic that has refused so many, no others are tried, for it is the topic that refuses; and so there
/// is a bound to what is kept.
const HALTED_FROM: usize = 100;

/// What was refused, and when it is tried again.
#[derive(Debug)]
pub(super) struct Refused {
    backoff: Backoff,
    messages: HashMap<i64, Message>,
}

#[derive(Debug)]
struct Message {
    topic: Arc<str>,
    times: u32,
    until: Instant,
}

impl Refused {
    pub(super) fn new() -> Self {
        let (first, last) = (Duration::from_millis(100), Duration::from_secs(30));
        let backoff = Backoff::new(first, last).expect("it rises");
        Self { backoff, messages: HashMap::new() }
    }

    /// This one was refused, perhaps once more.
    pub(super) fn insert(&mut self, id: i64, topic: &Arc<str>, now: Instant) {
        let new = || Message { topic: topic.clone(), times: 0, until: now };
        let message = self.messages.entry(id).or_insert_with(new);
        message.times = message.times.saturating_add(1);
        message.until = now + self.backoff.delay(message.times);
    }

    /// This one was published, or is not there any more.
    pub(super) fn remove(&mut self, id: i64) {
        self.messages.remove(&id);
    }

    /// So many of those that are due, but for these; the first that were due.
    pub(super) fn due(&self, now: Instant, most: usize, but: &HashSet<i64>) -> Vec<i64> {
        let is_due = |(id, message): &(&i64, &Message)| message.until <= now && !but.contains(id);
        let mut due: Vec<_> = self.messages.iter().filter(is_due).collect();
        due.sort_unstable_by_key(|(_, message)| message.until);
        due.iter().take(most).map(|(id, _)| **id).collect()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = i64> {
        self.messages.keys().copied()
    }

    pub(super) fn contains(&self, id: i64) -> bool {
        self.messages.contains_key(&id)
    }

    /// When the next is due, after this.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        self.messages.values().map(|message| message.until).filter(|&until| until > now).min()
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Topics that refuse whatever they are given.
    pub(super) fn halted(&self) -> Vec<String> {
        let mut counts = HashMap::<&str, usize>::new();
        for message in self.messages.values() {
            *counts.entry(&message.topic).or_default() += 1;
        }
        let halted = counts.into_iter().filter(|(_, count)| *count >= HALTED_FROM);
        halted.map(|(topic, _)| topic.to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any back-off.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_is_refused_again_and_again_waits_for_half_a_minute_at_most() {
        let (mut refused, now) = (Refused::new(), Instant::now());
        let none = HashSet::new();
        for _ in 0..1000 {
            refused.insert(7, &"bills".into(), now);
            assert!(refused.next(now).is_none_or(|next| next <= now + LONG));
        }
        assert_eq!(refused.due(now + LONG, 1, &none), [7]);
        assert_eq!((refused.next(now + LONG), refused.len()), (None, 1));
        assert_eq!(refused.due(now + LONG, 1, &HashSet::from([7])), [0; 0]);
    }

    #[test]
    fn of_those_that_are_due_the_first_are_first() {
        let (mut refused, now) = (Refused::new(), Instant::now());
        for id in 0..4 {
            refused.insert(id, &"bills".into(), now + LONG * (4 - id as u32));
        }
        assert_eq!(refused.due(now + LONG * 4, 2, &HashSet::new()), [3, 2]);
    }

    #[test]
    fn a_topic_that_refuses_many_is_halted_and_no_other_is() {
        let (mut refused, now) = (Refused::new(), Instant::now());
        (0..99).for_each(|id| refused.insert(id, &"bills".into(), now));
        (200..250).for_each(|id| refused.insert(id, &"notes".into(), now));
        assert!(refused.halted().is_empty());
        refused.insert(100, &"bills".into(), now);
        assert_eq!(refused.halted(), ["bills"]);
        refused.remove(100);
        assert!(refused.halted().is_empty());
    }
}
