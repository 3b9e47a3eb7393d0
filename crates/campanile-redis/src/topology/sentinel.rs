//! A primary that sentinels name, and that changes with a failover.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use campanile_core::{BoxError, error};
use campanile_idempotency::StoreError;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{ConnectionInfo, RedisError, Value, cmd};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::timeout;

use super::Address;
use crate::access::Access;
use crate::connection::{self, Connections, Link};
use crate::error::may_pass;

/// The primary, as long as the connection to it lasts; asked for anew then.
pub(crate) struct Sentinel {
    name: Box<str>,
    sentinels: Box<[ConnectionInfo]>,
    access: Access,
    /// How long a sentinel, and a server that it names, may take to answer.
    patience: Duration,
    primary: Mutex<Option<Arc<Connections>>>,
    /// Locked while it is asked for, so that not each call that waits asks.
    asking: AsyncMutex<()>,
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
        let (primary, asking) = Default::default();
        Self { name, sentinels, access, patience, primary, asking }
    }

    /// The connection to the primary. When there is none, or it was given up, because it broke, did
    /// not answer, or leads to a server that is a replica now, the sentinels are asked.
    pub(crate) async fn link(&self) -> Result<Link, StoreError> {
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let _asking = self.asking.lock().await;
        // Somebody else may have been faster.
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let (_, primary, link) = self.find().await.map_err(StoreError::not_sent)?;
        *self.primary() = Some(primary);
        Ok(link)
    }

    /// The same primary, over connections of its own.
    pub(crate) fn another(&self) -> Self {
        let Self { name, sentinels, access, patience, .. } = self;
        let (primary, asking) = Default::default();
        Self {
            name: name.clone(),
            sentinels: sentinels.clone(),
            access: access.clone(),
            patience: *patience,
            primary,
            asking,
        }
    }

    /// The server that is the primary now.
    pub(crate) async fn info(&self) -> Result<ConnectionInfo, BoxError> {
        let (address, ..) = self.find().await?;
        Ok(self.access.info(&address))
    }

    fn current(&self) -> Option<Link> {
        self.primary().as_ref()?.current()
    }

    fn primary(&self) -> MutexGuard<'_, Option<Arc<Connections>>> {
        self.primary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first of the servers named that says of itself that it is the primary; the one that most
    /// sentinels name is tried first, for one that was cut off tells what was.
    async fn find(&self) -> Result<(Address, Arc<Connections>, Link), NoPrimary> {
        let mut missing = NoPrimary { name: self.name.clone(), reasons: Vec::new() };
        for address in self.named(&mut missing).await {
            let connections = self.access.connections(&address);
            match timeout(self.patience, link_to_primary(&connections)).await {
                Ok(Ok(link)) => return Ok((address, connections, link)),
                Ok(Err(error)) => missing.reasons.push(error),
                Err(_) => {
                    missing.reasons.push(format!("the server at {address} does not answer").into());
                }
            }
        }
        Err(missing)
    }

    /// The servers that the sentinels take for the primary, the one of most first.
    async fn named(&self, missing: &mut NoPrimary) -> Vec<Address> {
        let mut asked: FuturesUnordered<_> = self.sentinels.iter().map(|s| self.ask(s)).collect();
        let mut named: Vec<(Address, usize)> = Vec::new();
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(address) => match named.iter_mut().find(|(other, _)| *other == address) {
                    Some((_, times)) => *times += 1,
                    None => named.push((address, 1)),
                },
                Err(error) => missing.reasons.push(error),
            }
            if named.iter().any(|(_, times)| times * 2 > self.sentinels.len()) {
                break;
            }
        }
        named.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
        named.into_iter().map(|(address, _)| address).collect()
    }

    /// Where one sentinel believes the primary to be.
    async fn ask(&self, sentinel: &ConnectionInfo) -> Result<Address, BoxError> {
        let told_nothing = |why| NotTold { sentinel: sentinel.addr().to_string(), why };
        let asked = async {
            let mut connection = connection::open(sentinel.clone()).await?;
            let mut ask = cmd("SENTINEL");
            ask.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.name);
            ask.query_async::<Option<(String, u16)>>(&mut connection).await
        };
        match timeout(self.patience, asked).await {
            Ok(Ok(Some((host, port)))) => Ok(Address { host: host.into(), port }),
            Ok(Ok(None)) => Err(told_nothing(Why::UnknownName).into()),
            Ok(Err(error)) => Err(told_nothing(Why::Failed(error)).into()),
            Err(_) => Err(told_nothing(Why::Silent).into()),
        }
    }
}

/// The connection, if it leads to a primary.
async fn link_to_primary(connections: &Arc<Connections>) -> Result<Link, BoxError> {
    let mut link = connections.link().await?;
    let role = cmd("ROLE").query_async::<Vec<Value>>(&mut link.connection).await?;
    match role.first() {
        Some(Value::BulkString(role)) if role == b"master" => Ok(link),
        _ => Err(format!("the server at {} is no primary", connections.address()).into()),
    }
}

impl fmt::Display for Sentinel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the primary `{}` of the sentinels at ", self.name)?;
        for (place, sentinel) in self.sentinels.iter().enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            write!(f, "{separator}{}", sentinel.addr())?;
        }
        Ok(())
    }
}

/// No server was found that is the primary.
#[derive(Debug)]
pub(crate) struct NoPrimary {
    name: Box<str>,
    reasons: Vec<BoxError>,
}

impl NoPrimary {
    /// Whether one may be found later: some of the servers may only not be up yet.
    pub(crate) fn may_pass(&self) -> bool {
        self.reasons.iter().any(|reason| match reason.downcast_ref() {
            Some(NotTold { why: Why::UnknownName, .. }) => false,
            _ => may_pass(&**reason),
        })
    }
}

impl fmt::Display for NoPrimary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no primary `{}` was found", self.name)?;
        for reason in &self.reasons {
            for (depth, error) in error::sources(&**reason).enumerate() {
                let separator = if depth == 0 { "; " } else { ": " };
                write!(f, "{separator}{error}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for NoPrimary {}

/// A sentinel that named no server.
#[derive(Debug)]
struct NotTold {
    sentinel: String,
    why: Why,
}

#[derive(Debug)]
enum Why {
    UnknownName,
    Failed(RedisError),
    Silent,
}

impl fmt::Display for NotTold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.why {
            Why::UnknownName => "knows no such name",
            Why::Failed(_) => "failed",
            Why::Silent => "does not answer",
        };
        write!(f, "the sentinel at {} {why}", self.sentinel)
    }
}

impl std::error::Error for NotTold {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.why {
            Why::Failed(error) => Some(error),
            Why::UnknownName | Why::Silent => None,
        }
    }
}
