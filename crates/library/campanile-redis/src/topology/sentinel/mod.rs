//! A primary that sentinels name and that changes with a failover.
//!
//! `sentinels` finds the primary when there is no connection to it. `monitor` detects that the
//! sentinels have named another primary while the connection still works.

mod error;
mod monitor;
mod sentinels;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use campanile_core::BoxError;
use campanile_idempotency::StoreError;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

pub(crate) use self::error::NoPrimary;
use self::monitor::FailoverMonitor;
use self::sentinels::{FoundPrimary, Sentinels};
use super::Address;
use crate::connection::{ConnectionHandle, SharedConnection};
use crate::connector::{Connector, Endpoint};

/// The maximum time of a search when the store connects, which is 2 s for each of its parts. A
/// failover during a search is noticed by the next one, so a server that hangs must not hold it up.
const MAX_STARTUP_SEARCH: Duration = Duration::from_secs(6);

/// The primary, for as long as the connection to it lasts and the sentinels name no other. After
/// that the sentinels are asked again.
pub(crate) struct Sentinel {
    monitor: Arc<FailoverMonitor>,
    primary: Mutex<Option<Primary>>,
    /// Locked while the sentinels are asked, so that concurrent callers ask them once.
    query_lock: AsyncMutex<()>,
}

/// The server that was found to be the primary.
struct Primary {
    /// When the sentinels were asked for it.
    queried_at: Instant,
    address: Address,
    connection: Arc<SharedConnection>,
}

impl Sentinel {
    pub(crate) fn new(
        name: Box<str>,
        sentinels: Box<[Endpoint]>,
        connector: Connector,
        command_timeout: Duration,
    ) -> Self {
        Self::with_monitor(FailoverMonitor::new(Sentinels {
            name,
            endpoints: sentinels,
            connector,
            command_timeout,
        }))
    }

    /// Gets the connection to the primary.
    ///
    /// Asks the sentinels if there is no connection or if it was discarded: because it broke, did
    /// not answer, leads to a server that is now a replica, or leads to a server other than the one
    /// that the sentinels now name.
    pub(crate) async fn connection(&self) -> Result<ConnectionHandle, StoreError> {
        if let Some(handle) = self.current() {
            return Ok(handle);
        }
        let _guard = self.query_lock.lock().await;
        // Another task may have connected while this one waited for the lock.
        if let Some(handle) = self.current() {
            return Ok(handle);
        }
        let queried_at = Instant::now();
        let sentinels = &self.monitor.sentinels;
        let found = sentinels.find_primary(sentinels.command_timeout).await;
        let FoundPrimary { address, connection, handle } = found.map_err(StoreError::not_sent)?;
        *self.primary() = Some(Primary { queried_at, address, connection });
        Ok(handle)
    }

    /// The same primary, over connections of its own. They share the background queries to the
    /// sentinels.
    pub(crate) fn with_new_connections(&self) -> Self {
        Self::with_monitor(Arc::clone(&self.monitor))
    }

    /// Finds the server that is the primary when the store connects.
    pub(crate) async fn primary_endpoint(&self) -> Result<Endpoint, BoxError> {
        let sentinels = &self.monitor.sentinels;
        let time = sentinels.connector.connect_timeout().min(MAX_STARTUP_SEARCH);
        let FoundPrimary { address, .. } = sentinels.find_primary(time).await?;
        Ok(sentinels.connector.endpoint(&address))
    }

    /// Has the sentinels asked at once: the server may no longer be the primary although it
    /// answers.
    pub(crate) fn recheck_primary(&self) {
        self.monitor.poll_now();
    }

    fn with_monitor(monitor: Arc<FailoverMonitor>) -> Self {
        let (primary, query_lock) = Default::default();
        Self { monitor, primary, query_lock }
    }

    fn current(&self) -> Option<ConnectionHandle> {
        let primary = self.primary();
        let Primary { queried_at, address, connection } = primary.as_ref()?;
        let handle = connection.current()?;
        if let Some(changed) = self.monitor.new_primary_since(address, *queried_at) {
            handle.discard(&changed);
            return None;
        }
        self.monitor.ensure_polling(address);
        Some(handle)
    }

    fn primary(&self) -> MutexGuard<'_, Option<Primary>> {
        self.primary.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Sentinel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.monitor.sentinels.fmt(f)
    }
}

#[cfg(test)]
mod tests;
