//! A primary that sentinels name and that changes with a failover.
//!
//! `sentinels` finds the primary when there is no connection to it. `watch` detects that the
//! sentinels have named another primary while the connection still works.

mod error;
mod sentinels;
mod watch;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use campanile_core::BoxError;
use campanile_idempotency::StoreError;
use redis::ConnectionInfo;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

pub(crate) use self::error::NoPrimary;
use self::sentinels::{Found, Sentinels};
use self::watch::Watch;
use super::Address;
use crate::access::Access;
use crate::connection::{Connections, Link};

/// The primary, for as long as the connection to it lasts and the sentinels name no other. After
/// that the sentinels are asked again.
pub(crate) struct Sentinel {
    watch: Arc<Watch>,
    primary: Mutex<Option<Primary>>,
    /// Locked while the sentinels are asked, so that concurrent callers ask them once.
    asking: AsyncMutex<()>,
}

/// The server that was found to be the primary.
struct Primary {
    /// When the sentinels were asked for it.
    asked: Instant,
    address: Address,
    connections: Arc<Connections>,
}

impl Sentinel {
    pub(crate) fn new(
        name: Box<str>,
        sentinels: Box<[ConnectionInfo]>,
        access: Access,
        command_timeout: Duration,
    ) -> Self {
        // Short enough to try the second server named within the same call.
        let patience = command_timeout / 4;
        Self::of(Watch::new(Sentinels { name, infos: sentinels, access, patience }))
    }

    /// Gets the connection to the primary.
    ///
    /// Asks the sentinels if there is no connection or if it was discarded: because it broke, did
    /// not answer, leads to a server that is now a replica, or leads to a server other than the one
    /// that the sentinels now name.
    pub(crate) async fn link(&self) -> Result<Link, StoreError> {
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let _asking = self.asking.lock().await;
        // Another task may have connected while this one waited for the lock.
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let asked = Instant::now();
        let found = self.watch.sentinels.find().await.map_err(StoreError::not_sent)?;
        let Found { address, connections, link } = found;
        *self.primary() = Some(Primary { asked, address, connections });
        Ok(link)
    }

    /// The same primary, over connections of its own. They share the background queries to the
    /// sentinels.
    pub(crate) fn another(&self) -> Self {
        Self::of(Arc::clone(&self.watch))
    }

    /// Finds the server that is the primary now.
    pub(crate) async fn info(&self) -> Result<ConnectionInfo, BoxError> {
        let sentinels = &self.watch.sentinels;
        let Found { address, .. } = sentinels.find().await?;
        Ok(sentinels.access.info(&address))
    }

    /// Has the sentinels asked at once: the server may no longer be the primary although it
    /// answers.
    pub(crate) fn doubt(&self) {
        self.watch.doubt();
    }

    fn of(watch: Arc<Watch>) -> Self {
        let (primary, asking) = Default::default();
        Self { watch, primary, asking }
    }

    fn current(&self) -> Option<Link> {
        let primary = self.primary();
        let Primary { asked, address, connections } = primary.as_ref()?;
        let link = connections.current()?;
        if let Some(left) = self.watch.left(address, *asked) {
            link.discard(&left);
            return None;
        }
        self.watch.go_on(address);
        Some(link)
    }

    fn primary(&self) -> MutexGuard<'_, Option<Primary>> {
        self.primary.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Sentinel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.watch.sentinels.fmt(f)
    }
}
