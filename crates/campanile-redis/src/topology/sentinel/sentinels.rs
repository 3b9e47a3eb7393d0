//! Queries to the sentinels.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::BoxError;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{ConnectionInfo, Value, cmd};
use tokio::time::timeout;

use super::error::{NoPrimary, NotTold, Why};
use crate::access::Access;
use crate::connection::{self, Connections, Link};
use crate::topology::Address;

/// The sentinels of a primary.
pub(super) struct Sentinels {
    /// The name of the primary in the sentinels' configuration.
    pub(super) name: Box<str>,
    pub(super) infos: Box<[ConnectionInfo]>,
    pub(super) access: Access,
    /// The time that a sentinel, or a server that it names, has to answer.
    pub(super) patience: Duration,
}

/// A server that is the primary, and a connection to it.
pub(super) struct Found {
    pub(super) address: Address,
    pub(super) connections: Arc<Connections>,
    pub(super) link: Link,
}

impl Sentinels {
    /// Finds the first of the named servers that reports itself as the primary. The server that
    /// most sentinels name is tried first, because a sentinel that was cut off names an outdated
    /// one.
    pub(super) async fn find(&self) -> Result<Found, NoPrimary> {
        let mut missing = self.none();
        for (address, _) in self.named(&mut missing).await {
            match self.meet(&address).await {
                Ok(found) => return Ok(found),
                Err(reason) => missing.reasons.push(reason),
            }
        }
        Err(missing)
    }

    /// Finds the server that more than half of the sentinels name.
    pub(super) async fn most_named(&self) -> Option<Address> {
        let named = self.named(&mut self.none()).await.into_iter().next();
        named.filter(|(_, times)| self.is_most(*times)).map(|(address, _)| address)
    }

    /// Asks the server whether it is a primary.
    pub(super) async fn is_primary(&self, address: &Address) -> bool {
        self.meet(address).await.is_ok()
    }

    fn none(&self) -> NoPrimary {
        NoPrimary { name: self.name.clone(), reasons: Vec::new() }
    }

    fn is_most(&self, times: usize) -> bool {
        times * 2 > self.infos.len()
    }

    async fn meet(&self, address: &Address) -> Result<Found, BoxError> {
        let connections = self.access.connections(address);
        match timeout(self.patience, link_to_primary(&connections)).await {
            Ok(link) => Ok(Found { address: address.clone(), link: link?, connections }),
            Err(_) => Err(format!("the server at {address} did not answer").into()),
        }
    }

    /// Asks the sentinels for the primary. Returns the servers that they name and how many name
    /// each, in descending order of that number. Adds failures to `missing`.
    async fn named(&self, missing: &mut NoPrimary) -> Vec<(Address, usize)> {
        let mut asked: FuturesUnordered<_> = self.infos.iter().map(|s| self.ask(s)).collect();
        let mut named: Vec<(Address, usize)> = Vec::new();
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(address) => match named.iter_mut().find(|(other, _)| *other == address) {
                    Some((_, times)) => *times += 1,
                    None => named.push((address, 1)),
                },
                Err(error) => missing.reasons.push(error),
            }
            if named.iter().any(|(_, times)| self.is_most(*times)) {
                break;
            }
        }
        named.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
        named
    }

    /// Asks one sentinel for the address of the primary.
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

/// Connects to the server, and fails if it is not a primary.
async fn link_to_primary(connections: &Arc<Connections>) -> Result<Link, BoxError> {
    let mut link = connections.link().await?;
    let role = cmd("ROLE").query_async::<Vec<Value>>(&mut link.connection).await?;
    match role.first() {
        Some(Value::BulkString(role)) if role == b"master" => Ok(link),
        _ => Err(format!("the server at {} is not a primary", connections.address()).into()),
    }
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the primary `{}` of the sentinels at ", self.name)?;
        for (place, sentinel) in self.infos.iter().enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            write!(f, "{separator}{}", sentinel.addr())?;
        }
        Ok(())
    }
}
