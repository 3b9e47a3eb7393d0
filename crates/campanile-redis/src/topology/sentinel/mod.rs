//! A primary that sentinels name, and that changes with a failover.
//!
//! `sentinels` finds it when there is no connection to it, or none any more; `watch` notices while
//! there is one that the sentinels have another.

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

/// The primary, as long as the connection to it lasts, and the sentinels name no other; asked for
/// anew then.
pub(crate) struct Sentinel {
    watch: Arc<Watch>,
    primary: Mutex<Option<Primary>>,
    /// Locked while it is asked for, so that not each call that waits asks.
    asking: AsyncMutex<()>,
}

/// The server that was found to be the primary.
struct Primary {
    /// When it was asked for.
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
        // Two of them fit into a call, so that the second server named is tried, too.
        let patience = command_timeout / 4;
        Self::of(Watch::new(Sentinels { name, infos: sentinels, access, patience }))
    }

    /// The connection to the primary. When there is none, or it was given up, because it broke, did
    /// not answer, leads to a server that is a replica now, or not to the one that the sentinels
    /// name by then, they are asked.
    pub(crate) async fn link(&self) -> Result<Link, StoreError> {
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let _asking = self.asking.lock().await;
        // Somebody else may have been faster.
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let asked = Instant::now();
        let found = self.watch.sentinels.find().await.map_err(StoreError::not_sent)?;
        let Found { address, connections, link } = found;
        *self.primary() = Some(Primary { asked, address, connections });
        Ok(link)
    }

    /// The same primary, over connections of its own. The sentinels are asked for all of them
    /// together whether it has changed.
    pub(crate) fn another(&self) -> Self {
        Self::of(Arc::clone(&self.watch))
    }

    /// The server that is the primary now.
    pub(crate) async fn info(&self) -> Result<ConnectionInfo, BoxError> {
        let sentinels = &self.watch.sentinels;
        let Found { address, .. } = sentinels.find().await?;
        Ok(sentinels.access.info(&address))
    }

    /// It may be the primary no more, although it answers: the sentinels are asked at once.
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
