//! Checks over each new connection whether the server still has what it acknowledged.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use campanile_core::telemetry::{Counter, Family, RedisLoss, instruments};
use campanile_core::{Answer, Command, Entry, FencingToken, Namespace, Operation, Reply, State};
use campanile_idempotency::StoreError;
use redis::{RedisError, Value, cmd, from_redis_value};
use tokio::time::Instant;

use super::report::Info;
use crate::bucket::Buckets;
use crate::connection::ConnectionHandle;
use crate::key::write_entry_key;

/// Remembers what the servers have acknowledged, as far as needed to detect a loss: the last
/// completion of each, because a restart or a failover loses the latest writes first.
pub(crate) struct DataLossDetector {
    is_cluster: bool,
    buckets: Buckets,
    histories: Mutex<Vec<ReplicationHistory>>,
    /// The namespaces that are known to exist.
    namespaces: Mutex<BTreeSet<Namespace>>,
    losses: Family<RedisLoss, Counter>,
}

/// The history of a primary, continued by the primary that replaces it.
struct ReplicationHistory {
    /// The replication ID, which changes with each restart and each failover.
    id: String,
    /// The address of the primary.
    address: Box<str>,
    last: Option<Completion>,
}

/// Why a server was not checked.
pub(crate) enum VerifyError {
    /// The connection broke.
    Connection(RedisError),
    /// The server is still loading its data and cannot answer yet.
    Loading,
}

/// An acknowledged completion.
#[derive(Clone)]
struct Completion {
    entry_key: Vec<u8>,
    token: FencingToken,
    /// The end of its retention. `None` if an `Instant` cannot represent it.
    expires_at: Option<Instant>,
}

impl DataLossDetector {
    pub(crate) fn new(is_cluster: bool, buckets: Buckets) -> Self {
        let (histories, namespaces) = Default::default();
        let losses = Family::new(&instruments::REDIS_DATA_LOSSES, &[]);
        Self { is_cluster, buckets, histories, namespaces, losses }
    }

    /// Checks the server at the end of a new connection, and reports if the server has lost something
    /// or may have. A server that does not report its replication ID is not checked.
    pub(crate) async fn verify(&self, handle: &ConnectionHandle) -> Result<(), VerifyError> {
        let reply = handle.send(&cmd("INFO").arg("replication").take(), false).await;
        let reply = reply.map_err(VerifyError::Connection)?;
        let Ok(info) = from_redis_value(reply).map(Info::new) else {
            return Ok(());
        };
        let Some(id) = info.field("master_replid") else {
            return Ok(());
        };
        let previous_id = info.field("master_replid2").unwrap_or_default();
        let Some(last) = self.find_last_completion(id, previous_id, handle.address()) else {
            return Ok(());
        };
        let is_present = match last {
            Some(last) => has_completion(&last, handle).await?,
            None => None,
        };
        if self.continue_history(id, previous_id, handle.address()) {
            self.report_restart(handle.address(), is_present);
        }
        Ok(())
    }

    /// Remembers the last completion among the commands that a server has answered.
    pub(crate) fn record_completions<'a>(
        &self,
        handle: &ConnectionHandle,
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
        let mut entry_key = Vec::new();
        write_entry_key(&mut entry_key, key, self.buckets);
        let expires_at = Instant::now().checked_add(retention.completed);
        let mut histories = self.histories();
        if let Some(history) =
            histories.iter_mut().find(|history| *history.address == *handle.address())
        {
            history.last = Some(Completion { entry_key, token: grant.token, expires_at });
        }
    }

    /// Checks whether the namespace is known to exist, with the bucket count of this store.
    pub(crate) fn has_namespace(&self, namespace: &Namespace) -> bool {
        self.namespaces().contains(namespace)
    }

    /// Records that a namespace exists. `is_lost`: it existed before, but the server no longer had
    /// it.
    pub(crate) fn record_namespace(&self, namespace: &Namespace, is_lost: bool, address: &str) {
        self.namespaces().insert(namespace.clone());
        if is_lost {
            self.losses.of(RedisLoss::Namespace).increment(1);
            tracing::error!(
                address,
                %namespace,
                "Redis has lost its data; completed records run again when they are redelivered"
            );
        }
    }

    /// Finds the last completion of the history that this server continues. `None` if it continues
    /// none.
    fn find_last_completion(
        &self,
        id: &str,
        previous_id: &str,
        address: &str,
    ) -> Option<Option<Completion>> {
        let mut histories = self.histories();
        if let Some(same) = histories.iter_mut().find(|history| history.id == id) {
            same.address = address.into();
            return None;
        }
        match self.find_history(&mut histories, previous_id, address) {
            Some(history) => Some(history.last.clone()),
            None => {
                histories.push(ReplicationHistory {
                    id: id.into(),
                    address: address.into(),
                    last: None,
                });
                None
            }
        }
    }

    /// Continues the history with this replication ID. Returns whether the ID is new.
    fn continue_history(&self, id: &str, previous_id: &str, address: &str) -> bool {
        let mut histories = self.histories();
        if histories.iter().any(|history| history.id == id) {
            return false;
        }
        if let Some(history) = self.find_history(&mut histories, previous_id, address) {
            *history = ReplicationHistory { id: id.into(), address: address.into(), last: None };
        }
        true
    }

    /// Finds the history of the same server, or of the primary that this server was a replica of.
    /// Only a cluster has more than one history.
    fn find_history<'a>(
        &self,
        histories: &'a mut [ReplicationHistory],
        previous_id: &str,
        address: &str,
    ) -> Option<&'a mut ReplicationHistory> {
        let matches = |history: &ReplicationHistory| {
            history.id == previous_id || *history.address == *address || !self.is_cluster
        };
        histories.iter_mut().find(|history| matches(history))
    }

    fn report_restart(&self, address: &str, is_present: Option<bool>) {
        match is_present {
            Some(false) => {
                self.losses.of(RedisLoss::Completions).increment(1);
                tracing::error!(
                    address,
                    "Redis was restarted or failed over and has lost completions that it had \
                     acknowledged; their records run again when they are redelivered"
                );
            }
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

    fn namespaces(&self) -> MutexGuard<'_, BTreeSet<Namespace>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn histories(&self) -> MutexGuard<'_, Vec<ReplicationHistory>> {
        self.histories.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks the server whether it still has the completion. `None` if it does not say, or if the
/// retention has ended.
async fn has_completion(
    completion: &Completion,
    handle: &ConnectionHandle,
) -> Result<Option<bool>, VerifyError> {
    let Completion { entry_key, token, expires_at } = completion;
    if expires_at.is_some_and(|expires_at| expires_at <= Instant::now()) {
        return Ok(None);
    }
    let get = cmd("GET").arg(entry_key).take();
    is_present(handle.send(&get, false).await.map_err(VerifyError::Connection)?, *token)
}

/// Checks whether this reply to `GET` is an entry that was completed with this token.
fn is_present(reply: Value, token: FencingToken) -> Result<Option<bool>, VerifyError> {
    Ok(match reply {
        Value::ServerError(error) if error.code() == "LOADING" => return Err(VerifyError::Loading),
        Value::Nil => Some(false),
        // A later state of the entry is as good: an operator may have reopened it.
        Value::BulkString(bytes) => Entry::from_bytes(&bytes).ok().map(|entry| {
            let is_processing = entry.state() == State::Processing;
            entry.token() > token || (entry.token() == token && !is_processing)
        }),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use campanile_core::step;

    use super::*;
    use crate::samples;

    const A: &str = "a:6379";
    const B: &str = "b:6379";

    /// Returns the address of the history that a server with these replication IDs continues, of two.
    fn continued(is_cluster: bool, previous_id: &str, address: &str) -> Option<Box<str>> {
        let detector = DataLossDetector::new(is_cluster, Buckets::DEFAULT);
        let history = |id: &str, address: &str| ReplicationHistory {
            id: id.into(),
            address: address.into(),
            last: None,
        };
        let mut histories = [history("1", A), history("2", B)];
        let found = detector.find_history(&mut histories, previous_id, address);
        found.map(|history| history.address.clone())
    }

    #[test]
    fn history_of_cluster_continues_by_address_or_previous_id() {
        assert_eq!(continued(true, "0", B).as_deref(), Some(B), "restarted");
        assert_eq!(continued(true, "2", "c:6379").as_deref(), Some(B), "failed over");
        assert_eq!(continued(true, "0", "c:6379"), None, "another primary");
    }

    #[test]
    fn history_of_single_primary_continues_at_any_address() {
        assert_eq!(continued(false, "0", "c:6379").as_deref(), Some(A));
    }

    fn present(reply: &str, token: FencingToken) -> Result<Option<bool>, VerifyError> {
        is_present(redis::parse_redis_value(reply.as_bytes()).unwrap(), token)
    }

    #[test]
    fn only_entry_completed_with_token_or_later_is_present() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        let (processing, reply) = step(None, &samples::acquire(), now);
        let Reply::Acquired { token, .. } = reply else { panic!("{reply:?}") };
        let (completed, _) = step(processing.clone(), &samples::complete(token), now);
        let (earlier, later) =
            (FencingToken::new(token.get() - 1), FencingToken::new(token.get() + 1));
        for (entry, token, expected) in [
            (&completed, token, true),
            (&processing, token, false),
            (&processing, earlier.unwrap(), true),
            (&completed, later.unwrap(), false),
        ] {
            let bytes = entry.as_ref().unwrap().to_bytes().to_vec();
            let present = is_present(Value::BulkString(bytes), token);
            assert_eq!(present.ok().flatten(), Some(expected), "{entry:?}, {token:?}");
        }
    }

    #[test]
    fn only_server_that_is_loading_is_asked_again() {
        let token = FencingToken::ZERO;
        let loading = present("-LOADING Redis is loading the dataset in memory\r\n", token);
        assert!(matches!(loading, Err(VerifyError::Loading)));
        for (reply, expected) in [
            ("-NOPERM this user has no permissions\r\n", None),
            ("$5\r\nother\r\n", None),
            ("$-1\r\n", Some(false)),
        ] {
            assert_eq!(present(reply, token).ok(), Some(expected), "{reply}");
        }
    }
}
