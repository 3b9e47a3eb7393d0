//! Messages that were refused.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use campanile_idempotency::Backoff;
use tokio::time::Instant;

/// The refused messages, and when each is retried.
#[derive(Debug)]
pub(super) struct Refused {
    backoff: Backoff,
    refusals: HashMap<i64, Refusal>,
}

#[derive(Debug)]
struct Refusal {
    topic: Arc<str>,
    count: u32,
    retry_at: Instant,
}

impl Refused {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self { backoff, refusals: HashMap::new() }
    }

    /// Adds a message that was refused, perhaps not for the first time.
    pub(super) fn insert(&mut self, id: i64, topic: &Arc<str>, now: Instant) {
        let new = || Refusal { topic: topic.clone(), count: 0, retry_at: now };
        let refusal = self.refusals.entry(id).or_insert_with(new);
        refusal.count = refusal.count.saturating_add(1);
        refusal.retry_at = now + self.backoff.delay(refusal.count);
    }

    /// Removes a message that was published or is no longer in the table.
    pub(super) fn remove(&mut self, id: i64) {
        self.refusals.remove(&id);
    }

    /// Lists up to `limit` messages that are due and not buffered, of topics that `accepts`, those
    /// that are due first.
    pub(super) fn due(
        &self,
        now: Instant,
        limit: usize,
        buffered: &HashSet<i64>,
        accepts: impl Fn(&str) -> bool,
    ) -> Vec<i64> {
        let is_due = |(id, refusal): &(&i64, &Refusal)| {
            refusal.retry_at <= now && !buffered.contains(id) && accepts(&refusal.topic)
        };
        let mut due: Vec<_> = self.refusals.iter().filter(is_due).collect();
        due.sort_unstable_by_key(|(_, refusal)| refusal.retry_at);
        due.iter().take(limit).map(|(id, _)| **id).collect()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = i64> {
        self.refusals.keys().copied()
    }

    pub(super) fn contains(&self, id: i64) -> bool {
        self.refusals.contains_key(&id)
    }

    /// The next time after `now` at which a message becomes due.
    pub(super) fn next_retry(&self, now: Instant) -> Option<Instant> {
        self.refusals
            .values()
            .map(|refusal| refusal.retry_at)
            .filter(|&retry_at| retry_at > now)
            .min()
    }

    pub(super) fn len(&self) -> usize {
        self.refusals.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::topics::{LONGER_THAN_BACKOFF, backoff};
    use super::*;

    #[test]
    fn repeated_refusals_wait_half_a_minute_at_most() {
        let (mut refused, now) = (Refused::new(backoff()), Instant::now());
        let none = HashSet::new();
        let mut longest = Duration::ZERO;
        for _ in 0..1000 {
            refused.insert(7, &"bills".into(), now);
            let retry_at = refused.next_retry(now).unwrap_or(now);
            longest = longest.max(retry_at - now);
            assert_eq!(refused.next_retry(retry_at), None);
        }
        let max = Duration::from_secs(30);
        assert!(longest > max / 2 && longest <= max, "{longest:?}");
        assert_eq!(refused.due(now + LONGER_THAN_BACKOFF, 1, &none, |_| true), [7]);
        assert_eq!((refused.next_retry(now + LONGER_THAN_BACKOFF), refused.len()), (None, 1));
        assert_eq!(
            refused.due(now + LONGER_THAN_BACKOFF, 1, &HashSet::from([7]), |_| true),
            [0; 0]
        );
        refused.remove(7);
        assert_eq!(refused.len(), 0);
    }

    #[test]
    fn due_messages_are_sorted_by_due_time() {
        let (mut refused, now) = (Refused::new(backoff()), Instant::now());
        for id in 0..4 {
            refused.insert(id, &"bills".into(), now + LONGER_THAN_BACKOFF * (4 - id as u32));
        }
        assert_eq!(
            refused.due(now + LONGER_THAN_BACKOFF * 4, 2, &HashSet::new(), |_| true),
            [3, 2]
        );
    }
}
