//! Messages that were refused.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use campanile_idempotency::Backoff;
use tokio::time::Instant;

/// The refused messages, and when each is retried.
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
    pub(super) fn new(backoff: Backoff) -> Self {
        Self { backoff, messages: HashMap::new() }
    }

    /// Adds a message that was refused, perhaps not for the first time.
    pub(super) fn insert(&mut self, id: i64, topic: &Arc<str>, now: Instant) {
        let new = || Message { topic: topic.clone(), times: 0, until: now };
        let message = self.messages.entry(id).or_insert_with(new);
        message.times = message.times.saturating_add(1);
        message.until = now + self.backoff.delay(message.times);
    }

    /// Removes a message that was published or is no longer in the table.
    pub(super) fn remove(&mut self, id: i64) {
        self.messages.remove(&id);
    }

    /// Lists up to `most` messages that are due and not in hand, of topics accepted by `of`, those
    /// that are due first.
    pub(super) fn due(
        &self,
        now: Instant,
        most: usize,
        in_hand: &HashSet<i64>,
        of: impl Fn(&str) -> bool,
    ) -> Vec<i64> {
        let is_due = |(id, message): &(&i64, &Message)| {
            message.until <= now && !in_hand.contains(id) && of(&message.topic)
        };
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

    /// The next time after `now` at which a message becomes due.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        self.messages.values().map(|message| message.until).filter(|&until| until > now).min()
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::topics::backoff;
    use super::*;

    /// Longer than any backoff.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_is_refused_again_and_again_waits_for_half_a_minute_at_most() {
        let (mut refused, now) = (Refused::new(backoff()), Instant::now());
        let none = HashSet::new();
        for _ in 0..1000 {
            refused.insert(7, &"bills".into(), now);
            assert!(refused.next(now).is_none_or(|next| next <= now + LONG));
        }
        assert_eq!(refused.due(now + LONG, 1, &none, |_| true), [7]);
        assert_eq!((refused.next(now + LONG), refused.len()), (None, 1));
        assert_eq!(refused.due(now + LONG, 1, &HashSet::from([7]), |_| true), [0; 0]);
    }

    #[test]
    fn of_those_that_are_due_the_first_are_first() {
        let (mut refused, now) = (Refused::new(backoff()), Instant::now());
        for id in 0..4 {
            refused.insert(id, &"bills".into(), now + LONG * (4 - id as u32));
        }
        assert_eq!(refused.due(now + LONG * 4, 2, &HashSet::new(), |_| true), [3, 2]);
    }
}
