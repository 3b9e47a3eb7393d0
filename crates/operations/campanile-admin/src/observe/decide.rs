//! Decides what became of a record. Performs no I/O.

use campanile_core::State;
use campanile_idempotency::Found;

use super::{ObservedPartition, RecordFindingKind as Kind};
use crate::entries::EntryReport;

/// What became of a key, some record of which is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Completed,
    /// The lock has not expired.
    Running,
    Lost(Kind),
}

/// Checks whether the group's committed offset is past this one. An offset beyond the end of the partition
/// says nothing, because the partition has lost records or was created again.
pub(super) fn is_finished(partition: &ObservedPartition, offset: i64) -> bool {
    !partition.is_beyond_end && partition.committed.is_some_and(|committed| committed > offset)
}

/// Judges the entry of a key, some record of which is finished.
pub(super) fn judge(entry: &EntryReport) -> Verdict {
    let found = match entry.found() {
        Found::Entry { entry, .. } => entry,
        Found::Unreadable { .. } => return Verdict::Lost(Kind::Unreadable),
        _ => return Verdict::Lost(Kind::NoEntry),
    };
    match found.state() {
        State::Completed => Verdict::Completed,
        State::Processing if entry.is_locked() => Verdict::Running,
        State::Processing => Verdict::Lost(Kind::Unfinished),
        // Interrupted, as by a shutdown.
        State::Retrying if found.is_released() => Verdict::Lost(Kind::Unfinished),
        State::Retrying => Verdict::Lost(Kind::Failed),
        State::Failed => Verdict::Lost(Kind::GivenUp),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, SystemTime};

    use campanile_core::{
        Command, FencingToken, Grant, IdempotencyKey, Operation, Owner, Reply, Retention, StoreKey,
    };
    use campanile_idempotency::{MemoryStore, Store};

    use super::*;
    use crate::entries::inspect;

    const TTL: Duration = Duration::from_secs(30);

    fn key() -> StoreKey {
        let key = IdempotencyKey::new("p-1").unwrap();
        StoreKey::new("billing".try_into().unwrap(), &key)
    }

    /// Grants the key, settles the grant by this operation, and judges the entry after this time.
    async fn verdict(settle: Option<fn(Grant) -> Operation>, seconds: u64) -> Verdict {
        let clock = Arc::new(AtomicU64::new(1_000));
        let now = clock.clone();
        let store = MemoryStore::with_clock(move || {
            SystemTime::UNIX_EPOCH + Duration::from_secs(now.load(Ordering::Relaxed))
        });
        let apply = async |operation| {
            let command = Command { key: key(), operation, retention: Retention::default() };
            store.apply(command).await.unwrap().reply
        };
        let owner = Owner::new(1).unwrap();
        let acquire = Operation::Acquire {
            owner,
            ttl: TTL,
            max_attempts: 3,
            fingerprint: None,
            floor: FencingToken::ZERO,
            details: None,
        };
        let Reply::Acquired { token, .. } = apply(acquire).await else { panic!("not granted") };
        if let Some(settle) = settle {
            apply(settle(Grant { token, owner })).await;
        }
        clock.fetch_add(seconds, Ordering::Relaxed);
        judge(&inspect(&store, &key()).await.unwrap())
    }

    fn fail(grant: Grant) -> Operation {
        let (delay, error) = (Duration::from_secs(60), "declined".into());
        Operation::Fail { grant, delay, last: false, error }
    }

    fn release(grant: Grant) -> Operation {
        Operation::Release { grant, ran: true }
    }

    fn give_up(grant: Grant) -> Operation {
        Operation::GiveUp { grant, reason: "declined".into() }
    }

    fn complete(grant: Grant) -> Operation {
        let (fingerprint, reply, details) = (None, None, None);
        Operation::Complete { grant, attempt: 1, fingerprint, reply, details }
    }

    #[tokio::test]
    async fn each_state_has_its_verdict() {
        for (settle, seconds, expected) in [
            (None, 29, Verdict::Running),
            (None, 30, Verdict::Lost(Kind::Unfinished)),
            (Some(complete as fn(Grant) -> Operation), 0, Verdict::Completed),
            (Some(fail), 0, Verdict::Lost(Kind::Failed)),
            (Some(fail), 120, Verdict::Lost(Kind::Failed)),
            (Some(release), 0, Verdict::Lost(Kind::Unfinished)),
            (Some(give_up), 0, Verdict::Lost(Kind::GivenUp)),
        ] {
            assert_eq!(verdict(settle, seconds).await, expected);
        }
    }

    #[test]
    fn key_without_a_readable_entry_is_a_finding() {
        let judge = |found| judge(&EntryReport::new(key(), SystemTime::UNIX_EPOCH, found));
        assert_eq!(judge(Found::Absent), Verdict::Lost(Kind::NoEntry));
        let unreadable = Found::Unreadable { reason: "0x58".into() };
        assert_eq!(judge(unreadable), Verdict::Lost(Kind::Unreadable));
    }

    #[test]
    fn record_is_finished_if_the_committed_offset_is_past_it() {
        let partition = |committed, is_beyond_end| ObservedPartition {
            partition: 0,
            from: 0,
            to: 10,
            committed,
            is_beyond_end,
        };
        for (committed, is_beyond_end, offset, expected) in [
            (Some(5), false, 4, true),
            (Some(5), false, 5, false),
            (None, false, 0, false),
            (Some(20), true, 4, false),
        ] {
            assert_eq!(is_finished(&partition(committed, is_beyond_end), offset), expected);
        }
    }
}
