//! The server's sessions of a pool.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::{Client, Error, SimpleQueryMessage, SimpleQueryRow};

use crate::log_limit::LogLimit;
use crate::watch::Watch;

/// Selects what identifies a session for as long as the server runs.
const SESSION: &str = "SELECT pg_catalog.format('%s %s', pid, extract(epoch FROM backend_start)) \
    FROM pg_catalog.pg_stat_activity";

/// A server that has been silent for this time is asked again, over another connection: it may have been
/// restarted and know nothing of the first one.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(2);

/// The pause between two questions whether closed sessions still exist.
const ASK_INTERVAL: Duration = Duration::from_millis(100);

/// Limits the sessions of a pool, including those whose connection is closed, until the server is
/// known to have ended them. A session that waits for a synchronous standby or for a disk does not
/// notice that its client is gone.
pub(crate) struct Sessions {
    pub(crate) address: Arc<str>,
    pub(crate) watch: Arc<Watch>,
    slots: Arc<Semaphore>,
    /// One more slot, for a connection that asks whether sessions have ended.
    extra: Arc<Semaphore>,
    /// The sessions whose connection is closed.
    closed: Mutex<Vec<(Box<str>, Slot)>>,
    log_limit: Mutex<LogLimit>,
}

/// A session's share of the limit. Attempts to connect of which one will be used have the same.
#[derive(Clone)]
pub(crate) struct Slot {
    _permit: Arc<OwnedSemaphorePermit>,
    is_extra: bool,
}

/// A session whose connection is open or being opened. The task of the connection drops it.
pub(crate) struct Session {
    sessions: Arc<Sessions>,
    id: OnceLock<Box<str>>,
    slot: Mutex<Slot>,
}

impl Sessions {
    pub(crate) fn new(limit: usize, address: Arc<str>, watch: Arc<Watch>) -> Arc<Self> {
        let [slots, extra] = [limit, 1].map(|permits| Arc::new(Semaphore::new(permits)));
        let (closed, log_limit) = Default::default();
        Arc::new(Self { address, watch, slots, extra, closed, log_limit })
    }

    /// The number of closed sessions that the server is not known to have ended.
    pub(crate) fn closed(&self) -> usize {
        lock(&self.closed).len()
    }

    /// Waits for a slot, which may be the extra one.
    pub(crate) async fn slot(&self) -> Slot {
        let (slots, extra) = (self.slots.clone(), self.extra.clone());
        let (permit, is_extra) = tokio::select! {
            biased;
            permit = slots.acquire_owned() => (permit, false),
            permit = extra.acquire_owned() => (permit, true),
        };
        let permit = permit.expect("the semaphores are never closed");
        Slot { _permit: Arc::new(permit), is_extra }
    }

    /// Asks the server over this connection which closed sessions have ended, until its session has
    /// a slot that is not the extra one. Returns `false` if the server is silent, so that another
    /// connection is needed.
    pub(crate) async fn admit(&self, client: &Client, session: &Session) -> Result<bool, Error> {
        loop {
            let Ok(asked) = timeout(RETRY_AFTER, self.ask(client, session)).await else {
                return Ok(false);
            };
            asked?;
            if session.has_slot() {
                return Ok(true);
            }
            if lock(&self.log_limit).allow(Instant::now()) {
                tracing::warn!(
                    address = &*self.address,
                    sessions = self.closed(),
                    "calls were abandoned, and Postgres still performs them; opening no more \
                     connections until one ends"
                );
            }
            sleep(ASK_INTERVAL).await;
        }
    }

    async fn ask(&self, client: &Client, session: &Session) -> Result<(), Error> {
        let closed: BTreeSet<Box<str>> = lock(&self.closed).iter().map(|it| it.0.clone()).collect();
        if closed.is_empty() {
            return Ok(());
        }
        let list: Vec<String> = closed.iter().map(|id| format!("'{id}'")).collect();
        let list = list.join(", ");
        let existing = format!("SELECT id FROM ({SESSION}) AS session (id) WHERE id IN ({list})");
        let rows = client.simple_query(&existing).await?;
        let mut existing: BTreeSet<_> = rows.iter().filter_map(row).map(|row| row.get(0)).collect();
        // A pooler has lent the session again.
        existing.remove(&session.id.get().map(|id| &**id));
        lock(&self.closed)
            .retain(|(id, _)| !closed.contains(id) || existing.contains(&Some(&**id)));
        Ok(())
    }
}

impl Session {
    pub(crate) fn new(sessions: &Arc<Sessions>, slot: Slot) -> Self {
        Self { sessions: sessions.clone(), id: OnceLock::new(), slot: Mutex::new(slot) }
    }

    /// Returns whether it has a slot that is not the extra one, which it replaces if it can.
    fn has_slot(&self) -> bool {
        let mut slot = lock(&self.slot);
        if slot.is_extra
            && let Ok(permit) = self.sessions.slots.clone().try_acquire_owned()
        {
            *slot = Slot { _permit: Arc::new(permit), is_extra: false };
        }
        !slot.is_extra
    }

    /// Reads the identifier of the session, and returns its process.
    pub(crate) async fn identify(&self, client: &Client) -> Result<u32, Error> {
        const PROCESS: &str = "pg_catalog.pg_backend_pid()";
        let own = format!("SELECT {PROCESS}, ({SESSION} WHERE pid = {PROCESS})");
        let rows = client.simple_query(&own).await?;
        let row = rows.iter().find_map(row).map(|row| (row.get(0), row.get(1)));
        let (process, id) = row.unwrap_or_default();
        if let Some(id) = id {
            let _ = self.id.set(id.replace('\'', "").into());
        }
        Ok(process.and_then(|process| process.parse().ok()).unwrap_or_default())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let slot = lock(&self.slot).clone();
        if let Some(id) = self.id.take().filter(|_| !slot.is_extra) {
            lock(&self.sessions.closed).push((id, slot));
        }
    }
}

fn row(message: &SimpleQueryMessage) -> Option<&SimpleQueryRow> {
    match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use bytes::BytesMut;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_postgres::{Config, NoTls};

    use super::*;
    use crate::PgConfig;
    use crate::wire::{put_authenticated, put_ready};

    #[tokio::test(start_paused = true)]
    async fn silent_server_admits_no_session() {
        let (client, mut server) = tokio::io::duplex(1024);
        tokio::spawn(async move {
            server.read_u8().await.unwrap();
            let mut out = BytesMut::new();
            put_authenticated(&mut out);
            put_ready(&mut out);
            server.write_all(&out).await.unwrap();
            pending::<()>().await;
        });
        let (client, connection) =
            Config::new().user("app").connect_raw(client, NoTls).await.unwrap();
        tokio::spawn(connection);
        let sessions = Sessions::new(2, "db".into(), PgConfig::new("host=db").watch);
        let [closed, session] = [sessions.slot().await, sessions.slot().await]
            .map(|slot| Session::new(&sessions, slot));
        // Nothing to ask.
        assert!(sessions.admit(&client, &session).await.unwrap());
        closed.id.set("7 0".into()).unwrap();
        drop(closed);
        let from = Instant::now();
        assert!(!sessions.admit(&client, &session).await.unwrap());
        assert_eq!((from.elapsed(), sessions.closed()), (RETRY_AFTER, 1));
    }
}
