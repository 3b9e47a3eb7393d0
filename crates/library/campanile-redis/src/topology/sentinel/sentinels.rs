//! Queries to the sentinels.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::BoxError;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{Value, cmd};
use tokio::time::timeout;

use super::error::{NoPrimary, SentinelError, SentinelErrorKind};
use crate::connection::{ConnectionHandle, SharedConnection};
use crate::connector::{Connector, Endpoint};
use crate::topology::Address;
use crate::topology::vote::Vote;

/// The time of a search for the primary is divided into this many parts: for the sentinels, for the
/// first server that they name, which may hang, and for the second.
const PARTS: u32 = 3;

/// The sentinels of a primary.
pub(super) struct Sentinels {
    /// The name of the primary in the sentinels' configuration.
    pub(super) name: Box<str>,
    pub(super) endpoints: Box<[Endpoint]>,
    pub(super) connector: Connector,
    /// The time for a search within a call, or between two calls.
    pub(super) command_timeout: Duration,
}

/// A server that is the primary, and a connection to it.
pub(super) struct FoundPrimary {
    pub(super) address: Address,
    pub(super) connection: Arc<SharedConnection>,
    pub(super) handle: ConnectionHandle,
}

impl Sentinels {
    /// Finds the first of the named servers that reports itself as the primary. The server that
    /// most sentinels name is tried first, because a sentinel that was cut off names an outdated
    /// one.
    ///
    /// The sentinels have a third of the time to answer, and so has each server.
    pub(super) async fn find_primary(&self, time: Duration) -> Result<FoundPrimary, NoPrimary> {
        let limit = time / PARTS;
        let mut no_primary = self.no_primary();
        for address in self.query_all(limit, &mut no_primary).await.into_reports() {
            match self.connect_if_primary(&address, limit).await {
                Ok(found) => return Ok(found),
                Err(reason) => no_primary.reasons.push(reason),
            }
        }
        Err(no_primary)
    }

    /// Finds the server that more than half of the sentinels name.
    pub(super) async fn majority_primary(&self) -> Option<Address> {
        let limit = self.command_timeout / PARTS;
        self.query_all(limit, &mut self.no_primary()).await.into_majority()
    }

    /// Asks the server whether it is a primary.
    pub(super) async fn is_primary(&self, address: &Address) -> bool {
        self.connect_if_primary(address, self.command_timeout / PARTS).await.is_ok()
    }

    fn no_primary(&self) -> NoPrimary {
        NoPrimary { name: self.name.clone(), reasons: Vec::new() }
    }

    async fn connect_if_primary(
        &self,
        address: &Address,
        limit: Duration,
    ) -> Result<FoundPrimary, BoxError> {
        let connection = self.connector.connection(address);
        match timeout(limit, connect_and_check_role(&connection)).await {
            Ok(handle) => {
                Ok(FoundPrimary { address: address.clone(), handle: handle?, connection })
            }
            Err(_) => Err(format!("the server at {} did not answer", connection.endpoint()).into()),
        }
    }

    /// Asks the sentinels for the primary, until more than half of them name the same server. Adds
    /// failures to `no_primary`.
    async fn query_all(&self, limit: Duration, no_primary: &mut NoPrimary) -> Vote<Address> {
        let mut queries: FuturesUnordered<_> =
            self.endpoints.iter().map(|sentinel| self.query(sentinel, limit)).collect();
        let mut vote = Vote::new(self.endpoints.len());
        while let Some(answer) = queries.next().await {
            match answer {
                Ok(address) => {
                    if vote.add(address) {
                        break;
                    }
                }
                Err(error) => no_primary.reasons.push(error),
            }
        }
        vote
    }

    /// Asks one sentinel for the address of the primary.
    async fn query(&self, sentinel: &Endpoint, limit: Duration) -> Result<Address, BoxError> {
        let failed = |kind| SentinelError { sentinel: sentinel.to_string(), kind };
        let query = async {
            let mut connection = sentinel.open().await?;
            let mut command = cmd("SENTINEL");
            command.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.name);
            command.query_async::<Option<(String, u16)>>(&mut connection).await
        };
        match timeout(limit, query).await {
            Ok(Ok(Some((host, port)))) => Ok(Address { host: host.into(), port }),
            Ok(Ok(None)) => Err(failed(SentinelErrorKind::UnknownName).into()),
            Ok(Err(error)) => Err(failed(SentinelErrorKind::Failed(error)).into()),
            Err(_) => Err(failed(SentinelErrorKind::TimedOut).into()),
        }
    }
}

/// Connects to the server, and fails if it is not a primary.
async fn connect_and_check_role(
    connection: &Arc<SharedConnection>,
) -> Result<ConnectionHandle, BoxError> {
    let mut handle = connection.get().await?;
    let role = cmd("ROLE").query_async::<Vec<Value>>(&mut handle.connection).await?;
    match role.first() {
        Some(Value::BulkString(role)) if role == b"master" => Ok(handle),
        _ => Err(format!("the server at {} is not a primary", connection.address()).into()),
    }
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the primary `{}` of the sentinels at ", self.name)?;
        for (place, sentinel) in self.endpoints.iter().enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            write!(f, "{separator}{}", sentinel.info().addr())?;
        }
        Ok(())
    }
}
