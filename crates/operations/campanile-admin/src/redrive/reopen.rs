//! Looks up the keys of several letters, and reopens them.

use std::collections::HashSet;
use std::time::Duration;

use campanile_core::{Answer, Command, FencingToken, Operation, Reply, Retention, State, StoreKey};
use campanile_idempotency::{Found, InspectStore, Store, StoreErrorKind};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::time::Instant;

use crate::AdminError;
use crate::entries::is_reopened;

/// What is attempted, for errors.
const ACTION: &str = "cannot reopen keys in the store";
const LOOK_UP: &str = "cannot read entries in the store";

/// The time between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// The number of entries that are read at a time.
const LOOK_UPS: usize = 32;

/// A key, and the token of its letter.
pub(super) type LetterKey = (StoreKey, FencingToken);

/// What the store has for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The key is FAILED under the lock of the letter, and [`reopen`] has reopened it.
    Reopened,
    /// The key had been reopened before, and nothing has happened since.
    ReopenedBefore,
    /// There is no entry.
    Absent,
    /// The entry belongs to a later lock than that of the letter.
    Superseded,
    /// The entry is in this state under the lock of the letter.
    Settled(State),
    /// The entry cannot be read.
    Unreadable,
}

/// Reopens keys. Of several letters with the same key and token, the first one reopens it.
///
/// # Errors
/// Fails if the store is not available within the timeout. Some of the keys may be reopened.
pub(super) async fn reopen(
    store: &impl InspectStore,
    keys: &[LetterKey],
    timeout: Duration,
) -> Result<Vec<Verdict>, AdminError> {
    let mut verdicts = vec![Verdict::Unreadable; keys.len()];
    let mut todo: Vec<usize> = (0..keys.len()).collect();
    while !todo.is_empty() {
        let mut distinct = HashSet::new();
        let (now, later): (Vec<usize>, Vec<usize>) =
            todo.into_iter().partition(|&index| distinct.insert(&keys[index].0));
        let batch = now.iter().map(|&index| keys[index].clone()).collect();
        for (index, verdict) in now.into_iter().zip(reopen_distinct(store, batch, timeout).await?) {
            verdicts[index] = verdict;
        }
        todo = later;
    }
    Ok(verdicts)
}

async fn reopen_distinct(
    store: &impl InspectStore,
    keys: Vec<LetterKey>,
    timeout: Duration,
) -> Result<Vec<Verdict>, AdminError> {
    // A redrive answers the same for a key that it reopens and for one that is reopened already.
    let mut verdicts = look_up(store, &keys, timeout).await?;
    let failed = |index: &usize| verdicts[*index] == Verdict::Reopened;
    let failed: Vec<usize> = (0..keys.len()).filter(failed).collect();
    let replies = redrive(store, failed.iter().map(|&index| &keys[index]), timeout).await?;
    for (index, reply) in failed.into_iter().zip(replies) {
        verdicts[index] = match reply {
            Some(Reply::Reopened) => Verdict::Reopened,
            Some(Reply::Settled(state)) => Verdict::Settled(state),
            // Locked again or expired since it was looked up. A later token is never followed by
            // that of the letter.
            Some(Reply::Lost) => look_up(store, &keys[index..=index], timeout).await?[0],
            _ => Verdict::Unreadable,
        };
    }
    Ok(verdicts)
}

/// Reads the entries of keys, and changes nothing. [`Verdict::Reopened`] is that of a key that can be
/// reopened.
///
/// # Errors
/// Fails if the store is not available within the timeout.
pub(super) async fn look_up(
    store: &impl InspectStore,
    keys: &[LetterKey],
    timeout: Duration,
) -> Result<Vec<Verdict>, AdminError> {
    let look_ups = keys.iter().map(|key| look_up_one(store, key, timeout));
    stream::iter(look_ups).buffered(LOOK_UPS).try_collect().await
}

async fn look_up_one(
    store: &impl InspectStore,
    (key, token): &LetterKey,
    timeout: Duration,
) -> Result<Verdict, AdminError> {
    let start = Instant::now();
    let found = loop {
        match store.inspect(key).await {
            Ok(inspection) => break inspection.found,
            Err(error) if error.kind() == StoreErrorKind::Unreadable => {
                return Ok(Verdict::Unreadable);
            }
            Err(error)
                if error.kind() == StoreErrorKind::Misconfigured || start.elapsed() >= timeout =>
            {
                return Err(AdminError::store(LOOK_UP, error));
            }
            Err(_) => tokio::time::sleep(RETRY_DELAY).await,
        }
    };
    Ok(match found {
        Found::Entry { entry, .. } if entry.token() != *token => Verdict::Superseded,
        Found::Entry { entry, .. } if is_reopened(&entry) => Verdict::ReopenedBefore,
        Found::Entry { entry, .. } => match entry.state() {
            State::Failed => Verdict::Reopened,
            state => Verdict::Settled(state),
        },
        Found::Unreadable { .. } => Verdict::Unreadable,
        _ => Verdict::Absent,
    })
}

/// Reopens FAILED keys, which are distinct, and repeats the calls that fail. `None` for an entry that
/// cannot be read.
async fn redrive(
    store: &impl Store,
    keys: impl Iterator<Item = &LetterKey>,
    timeout: Duration,
) -> Result<Vec<Option<Reply>>, AdminError> {
    let command = |(key, token): &LetterKey| Command {
        key: key.clone(),
        operation: Operation::Redrive { token: *token, force: false },
        retention: Retention::default(),
    };
    let commands: Vec<Command> = keys.map(command).collect();
    let mut replies: Vec<Option<Reply>> = vec![None; commands.len()];
    let mut todo: Vec<usize> = (0..commands.len()).collect();
    let start = Instant::now();
    while !todo.is_empty() {
        let batches = todo.chunks(store.max_batch().get()).map(|batch| {
            store.apply_batch(batch.iter().map(|&index| commands[index].clone()).collect())
        });
        let answers = join_all(batches).await.into_iter().flatten();
        let (mut later, mut failure) = (Vec::new(), None);
        for (index, answer) in todo.iter().copied().zip(answers) {
            match answer {
                Ok(Answer { reply: Reply::Corrupt, .. }) => {}
                Ok(Answer { reply, .. }) => replies[index] = Some(reply),
                Err(error) if error.kind() == StoreErrorKind::Unreadable => {}
                Err(error) if error.kind() == StoreErrorKind::Misconfigured => {
                    return Err(AdminError::store(ACTION, error));
                }
                Err(error) => {
                    failure = Some(error);
                    later.push(index);
                }
            }
        }
        todo = later;
        match failure {
            None => {}
            Some(error) if start.elapsed() >= timeout => {
                return Err(AdminError::store(ACTION, error));
            }
            Some(_) => tokio::time::sleep(RETRY_DELAY).await,
        }
    }
    Ok(replies)
}

#[cfg(test)]
mod tests {
    use campanile_core::IdempotencyKey;
    use campanile_idempotency::{Inspection, ScanCursor, ScanFilter, ScanPage, StoreError};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// The time that each call of the store takes.
    const CALL: Duration = Duration::from_secs(10);

    /// A store that does not answer. Each call fails after [`CALL`].
    #[derive(Clone)]
    struct Hung;

    async fn time_out<T>() -> Result<T, StoreError> {
        tokio::time::sleep(CALL).await;
        Err(StoreError::timeout("no answer"))
    }

    impl Store for Hung {
        async fn apply(&self, _: Command) -> Result<Answer, StoreError> {
            time_out().await
        }
    }

    impl InspectStore for Hung {
        async fn inspect(&self, _: &StoreKey) -> Result<Inspection, StoreError> {
            time_out().await
        }

        async fn scan(&self, _: &ScanFilter, _: &ScanCursor) -> Result<ScanPage, StoreError> {
            time_out().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_a_hung_store_count_toward_the_timeout() {
        let key = IdempotencyKey::new("p-1".to_owned()).unwrap();
        let key = StoreKey::new("payments".try_into().unwrap(), &key);
        let keys = [(key, FencingToken::new(1).unwrap())];
        let longest = TIMEOUT + CALL + RETRY_DELAY;

        let start = Instant::now();
        look_up(&Hung, &keys, TIMEOUT).await.unwrap_err();
        assert!(start.elapsed() <= longest, "looked up for {:?}", start.elapsed());

        let start = Instant::now();
        redrive(&Hung, keys.iter(), TIMEOUT).await.unwrap_err();
        assert!(start.elapsed() <= longest, "reopened for {:?}", start.elapsed());
    }
}
