//! The look at a server over each new connection: whether it still has what it acknowledged.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use campanile_core::{Answer, Command, Entry, FencingToken, Namespace, Operation, Reply, State};
use campanile_idempotency::StoreError;
use redis::{RedisError, Value, cmd, from_redis_value};
use tokio::time::Instant;

use super::seen::Info;
use crate::bucket::Buckets;
use crate::connection::Link;
use crate::key::write_entry_key;

/// Knows what the servers have acknowledged, as far as it takes to notice that one has lost it: the
/// last completion of each, since a restart or a failover loses the last ones first.
pub(crate) struct Witness {
    is_cluster: bool,
    buckets: Buckets,
    histories: Mutex<Vec<History>>,
    /// The namespaces that are known to be there.
    namespaces: Mutex<BTreeSet<Namespace>>,
}

/// What one primary has after another.
struct History {
    /// Redis's name for it: another one after each restart and each failover.
    id: String,
    /// The primary.
    address: Box<str>,
    last: Option<Completion>,
}

/// Why a server was not looked at.
pub(crate) enum Unmet {
    /// The connection broke.
    Broken(RedisError),
    /// It is still loading its data, and knows nothing yet.
    Loading,
}

/// A completion that was acknowledged.
#[derive(Clone)]
struct Completion {
    entry: Vec<u8>,
    token: FencingToken,
    /// Its retention ends. `None`: later than can be counted.
    until: Option<Instant>,
}

impl Witness {
    pub(crate) fn new(is_cluster: bool, buckets: Buckets) -> Self {
        let (histories, namespaces) = Default::default();
        Self { is_cluster, buckets, histories, namespaces }
    }

    /// Looks at the server at the end of a new connection, and tells if it has lost something, or
    /// may have. A server that does not tell its history is let be.
    pub(crate) async fn meet(&self, link: &Link) -> Result<(), Unmet> {
        let told = link.send(&cmd("INFO").arg("replication").take(), false).await;
        let told = told.map_err(Unmet::Broken)?;
        let Ok(info) = from_redis_value(told).map(Info::new) else {
            return Ok(());
        };
        let Some(id) = info.field("master_replid") else {
            return Ok(());
        };
        let before = info.field("master_replid2").unwrap_or_default();
        let Some(last) = self.last_of(id, before, link.address()) else {
            return Ok(());
        };
        let is_kept = match last {
            Some(last) => is_kept(&last, link).await?,
            None => None,
        };
        if self.note(id, before, link.address()) {
            tell(link.address(), is_kept);
        }
        Ok(())
    }

    /// A server has answered these commands of a call.
    pub(crate) fn answered<'a>(
        &self,
        link: &Link,
        commands: impl Iterator<Item = &'a Command>,
        answers: &[Result<Answer, StoreError>],
    ) {
        let completed = commands.zip(answers).filter_map(|(command, answer)| {
            match (&command.operation, &answer.as_ref().ok()?.reply) {
                (Operation::Complete { grant, .. }, Reply::Completed) => Some((command, grant)),
                _ => None,
            }
        });
        let Some((Command { key, retention, .. }, grant)) = completed.last() else {
            return;
        };
        let mut entry = Vec::new();
        write_entry_key(&mut entry, key, self.buckets);
        let until = Instant::now().checked_add(retention.completed);
        let mut histories = self.histories();
        if let Some(history) = histories.iter_mut().find(|one| *one.address == *link.address()) {
            history.last = Some(Completion { entry, token: grant.token, until });
        }
    }

    /// Whether a namespace was there before.
    pub(crate) fn knows(&self, namespace: &Namespace) -> bool {
        self.namespaces().contains(namespace)
    }

    /// A namespace is there. It is `lost` if it was there before, and then was not.
    pub(crate) fn used(&self, namespace: &Namespace, lost: bool, address: &str) {
        self.namespaces().insert(namespace.clone());
        if lost {
            tracing::error!(
                address,
                %namespace,
                "Redis has lost its data: what was completed is run again when it comes again"
            );
        }
    }

    /// The last completion of the history that this one follows; `None` if it follows none.
    fn last_of(&self, id: &str, before: &str, address: &str) -> Option<Option<Completion>> {
        let mut histories = self.histories();
        if let Some(same) = histories.iter_mut().find(|one| one.id == id) {
            same.address = address.into();
            return None;
        }
        match self.followed(&mut histories, before, address) {
            Some(history) => Some(history.last.clone()),
            None => {
                histories.push(History { id: id.into(), address: address.into(), last: None });
                None
            }
        }
    }

    /// The history goes on like this; whether that is news.
    fn note(&self, id: &str, before: &str, address: &str) -> bool {
        let mut histories = self.histories();
        if histories.iter().any(|one| one.id == id) {
            return false;
        }
        if let Some(history) = self.followed(&mut histories, before, address) {
            *history = History { id: id.into(), address: address.into(), last: None };
        }
        true
    }

    /// That of the same server, or of the primary that this one was a replica of. In a cluster there
    /// are others.
    fn followed<'a>(
        &self,
        histories: &'a mut [History],
        before: &str,
        address: &str,
    ) -> Option<&'a mut History> {
        let is_followed =
            |one: &History| one.id == before || *one.address == *address || !self.is_cluster;
        histories.iter_mut().find(|one| is_followed(one))
    }

    fn namespaces(&self) -> MutexGuard<'_, BTreeSet<Namespace>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn histories(&self) -> MutexGuard<'_, Vec<History>> {
        self.histories.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the server has the completion; `None` if it does not say, or need not have it any more.
async fn is_kept(completion: &Completion, link: &Link) -> Result<Option<bool>, Unmet> {
    let Completion { entry, token, until } = completion;
    if until.is_some_and(|until| until <= Instant::now()) {
        return Ok(None);
    }
    let get = cmd("GET").arg(entry).take();
    Ok(match link.send(&get, false).await.map_err(Unmet::Broken)? {
        Value::ServerError(error) if error.code() == "LOADING" => return Err(Unmet::Loading),
        Value::Nil => Some(false),
        // What came after it is as good: an operator may have reopened it.
        Value::BulkString(bytes) => Entry::from_bytes(&bytes).ok().map(|entry| {
            let is_processing = entry.state() == State::Processing;
            entry.token() > *token || (entry.token() == *token && !is_processing)
        }),
        _ => None,
    })
}

fn tell(address: &str, is_kept: Option<bool>) {
    match is_kept {
        Some(false) => tracing::error!(
            address,
            "Redis was restarted, or failed over, and has lost completions that it had \
             acknowledged: what they completed is run again when it comes again"
        ),
        Some(true) => tracing::warn!(
            address,
            "Redis was restarted, or failed over; the last completion that it acknowledged here is \
             still there"
        ),
        None => tracing::warn!(
            address,
            "Redis was restarted, or failed over; what it had not written to disk, or replicated, \
             is lost"
        ),
    }
}
