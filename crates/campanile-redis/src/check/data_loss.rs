//! Checks over each new connection whether the server still has what it acknowledged.

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

/// Remembers what the servers have acknowledged, as far as needed to detect a loss: the last
/// completion of each, because a restart or a failover loses the latest writes first.
pub(crate) struct Witness {
    is_cluster: bool,
    buckets: Buckets,
    histories: Mutex<Vec<History>>,
    /// The namespaces that are known to exist.
    namespaces: Mutex<BTreeSet<Namespace>>,
}

/// The history of a primary, continued by the primary that replaces it.
struct History {
    /// The replication ID, which changes with each restart and each failover.
    id: String,
    /// The address of the primary.
    address: Box<str>,
    last: Option<Completion>,
}

/// Why a server was not checked.
pub(crate) enum Unmet {
    /// The connection broke.
    Broken(RedisError),
    /// The server is still loading its data and cannot answer yet.
    Loading,
}

/// An acknowledged completion.
#[derive(Clone)]
struct Completion {
    entry: Vec<u8>,
    token: FencingToken,
    /// The end of its retention. `None` if an `Instant` cannot represent it.
    until: Option<Instant>,
}

impl Witness {
    pub(crate) fn new(is_cluster: bool, buckets: Buckets) -> Self {
        let (histories, namespaces) = Default::default();
        Self { is_cluster, buckets, histories, namespaces }
    }

    /// Checks the server at the end of a new connection, and logs if the server has lost something
    /// or may have. A server that does not report its replication ID is not checked.
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

    /// Remembers the last completion among the commands that a server has answered.
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

    /// Checks whether the namespace is known to exist.
    pub(crate) fn knows(&self, namespace: &Namespace) -> bool {
        self.namespaces().contains(namespace)
    }

    /// Records that a namespace exists. `lost`: it existed before, but the server no longer had it.
    pub(crate) fn used(&self, namespace: &Namespace, lost: bool, address: &str) {
        self.namespaces().insert(namespace.clone());
        if lost {
            tracing::error!(
                address,
                %namespace,
                "Redis has lost its data; completed records run again when they are redelivered"
            );
        }
    }

    /// Finds the last completion of the history that this server continues. `None` if it continues
    /// none.
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

    /// Continues the history with this replication ID. Returns whether the ID is new.
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

    /// Finds the history of the same server, or of the primary that this server was a replica of.
    /// Only a cluster has more than one history.
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

/// Asks the server whether it still has the completion. `None` if it does not say, or if the
/// retention has ended.
async fn is_kept(completion: &Completion, link: &Link) -> Result<Option<bool>, Unmet> {
    let Completion { entry, token, until } = completion;
    if until.is_some_and(|until| until <= Instant::now()) {
        return Ok(None);
    }
    let get = cmd("GET").arg(entry).take();
    Ok(match link.send(&get, false).await.map_err(Unmet::Broken)? {
        Value::ServerError(error) if error.code() == "LOADING" => return Err(Unmet::Loading),
        Value::Nil => Some(false),
        // A later state of the entry is as good: an operator may have reopened it.
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
            "Redis was restarted or failed over and has lost completions that it had \
             acknowledged; their records run again when they are redelivered"
        ),
        Some(true) => tracing::warn!(
            address,
            "Redis was restarted or failed over; the last completion that it acknowledged is \
             still there"
        ),
        None => tracing::warn!(
            address,
            "Redis was restarted or failed over; writes that it had not persisted or replicated \
             are lost"
        ),
    }
}
