//! Reopens the keys of several letters.

use std::collections::HashSet;
use std::time::Duration;

use campanile_core::{
    Answer, Command, FencingToken, Operation, Owner, Reply, Retention, State, StoreKey,
};
use campanile_idempotency::{Store, StoreErrorKind};
use futures_util::future::join_all;

use crate::AdminError;

/// What is attempted, for errors.
const ACTION: &str = "cannot reopen keys in the store";

/// The time between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// What the store answered for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The key is reopened: by this call, or by an earlier one after which nothing happened.
    Reopened,
    /// There is no entry.
    Absent,
    /// The entry belongs to a later lock than that of the letter.
    Superseded,
    /// The entry is in this state under the lock of the letter.
    Settled(State),
    /// The entry cannot be read.
    Unreadable,
}

/// Reopens keys, each with the token of its letter.
///
/// # Errors
/// Fails if the store is not available within the timeout. Some of the keys may be reopened.
pub(super) async fn reopen(
    store: &impl Store,
    keys: Vec<(StoreKey, FencingToken)>,
    timeout: Duration,
) -> Result<Vec<Verdict>, AdminError> {
    let redrives = keys
        .iter()
        .map(|(key, token)| (key.clone(), Operation::Redrive { token: *token, force: false }));
    let replies = apply(store, redrives.collect(), timeout).await?;
    let is_lost = |reply: &Option<Reply>| *reply == Some(Reply::Lost);
    // `Lost` has two meanings. To cancel an acquisition that never was changes nothing, and
    // is answered differently if there is no entry.
    let nobody = Owner::new(fastrand::u64(1..)).expect("the range excludes zero");
    let probes = keys.into_iter().zip(&replies).filter(|(_, reply)| is_lost(reply));
    let probes = probes.map(|((key, _), _)| (key, Operation::Cancel { owner: nobody })).collect();
    let mut probed = apply(store, probes, timeout).await?.into_iter();
    let verdicts = replies.into_iter().map(|reply| match reply {
        Some(Reply::Reopened) => Verdict::Reopened,
        Some(Reply::Settled(state)) => Verdict::Settled(state),
        Some(Reply::Lost) => match probed.next().flatten() {
            Some(Reply::Released) => Verdict::Absent,
            Some(_) => Verdict::Superseded,
            None => Verdict::Unreadable,
        },
        _ => Verdict::Unreadable,
    });
    Ok(verdicts.collect())
}

/// Applies operations, those on one key one after the other, and repeats those that fail. `None` for an entry that cannot
/// be read.
async fn apply(
    store: &impl Store,
    operations: Vec<(StoreKey, Operation)>,
    timeout: Duration,
) -> Result<Vec<Option<Reply>>, AdminError> {
    let command = |(key, operation)| Command { key, operation, retention: Retention::default() };
    let commands: Vec<Command> = operations.into_iter().map(command).collect();
    let mut replies: Vec<Option<Reply>> = vec![None; commands.len()];
    let mut todo: Vec<usize> = (0..commands.len()).collect();
    let mut waited = Duration::ZERO;
    while !todo.is_empty() {
        // The keys of one batch are distinct.
        let mut keys = HashSet::new();
        let (now, mut later): (Vec<usize>, Vec<usize>) =
            todo.into_iter().partition(|&index| keys.insert(&commands[index].key));
        let batches = now.chunks(store.max_batch().get()).map(|batch| {
            store.apply_batch(batch.iter().map(|&index| commands[index].clone()).collect())
        });
        let answers = join_all(batches).await.into_iter().flatten();
        let mut failure = None;
        for (index, answer) in now.iter().copied().zip(answers) {
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
            Some(error) if waited >= timeout => {
                return Err(AdminError::store(ACTION, error));
            }
            Some(_) => {
                tokio::time::sleep(RETRY_DELAY).await;
                waited += RETRY_DELAY;
            }
        }
    }
    Ok(replies)
}
