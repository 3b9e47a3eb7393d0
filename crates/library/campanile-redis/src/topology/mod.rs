//! The servers of a store, and which of them has a key.

mod cluster;
mod sentinel;
mod vote;

use std::fmt;
use std::sync::Arc;

use campanile_core::BoxError;
use campanile_idempotency::StoreError;

pub(crate) use self::cluster::{Address, Cluster, Node, slot_of};
pub(crate) use self::sentinel::{NoPrimary, Sentinel};
use crate::connection::{ConnectionHandle, SharedConnection};
use crate::connector::Endpoint;

/// The servers of a store and the connections to them.
pub(crate) enum Topology {
    /// A single server.
    Standalone(Arc<SharedConnection>),
    /// The primary that sentinels name.
    Sentinel(Box<Sentinel>),
    /// The masters of a cluster.
    Cluster(Cluster),
}

/// The server that a command is sent to and answered by.
#[derive(Clone)]
pub(crate) enum Route<'a> {
    Standalone(&'a Arc<SharedConnection>),
    Sentinel(&'a Sentinel),
    Node(Arc<Node>),
}

impl Topology {
    /// Finds the route to a slot. Only a cluster has more than one route.
    pub(crate) fn route(&self, slot: u16) -> Result<Route<'_>, StoreError> {
        Ok(match self {
            Self::Standalone(connection) => Route::Standalone(connection),
            Self::Sentinel(sentinel) => Route::Sentinel(sentinel),
            Self::Cluster(cluster) => Route::Node(cluster.master_of(slot)?),
        })
    }

    /// The same servers, over connections of its own.
    pub(crate) fn with_new_connections(&self) -> Self {
        match self {
            Self::Standalone(connection) => Self::Standalone(connection.with_new_connection()),
            Self::Sentinel(sentinel) => Self::Sentinel(Box::new(sentinel.with_new_connections())),
            Self::Cluster(cluster) => Self::Cluster(cluster.with_new_connections()),
        }
    }

    /// Finds the servers that accept writes now.
    pub(crate) async fn primaries(&self) -> Result<Vec<Endpoint>, BoxError> {
        Ok(match self {
            Self::Standalone(connection) => vec![connection.endpoint().clone()],
            Self::Sentinel(sentinel) => vec![sentinel.primary_endpoint().await?],
            Self::Cluster(cluster) => {
                let masters = cluster.fetch_masters().await?;
                masters.iter().map(|address| cluster.endpoint(address)).collect()
            }
        })
    }

    /// Notes that a write did not reach the replicas: the primary may have been replaced unnoticed.
    pub(crate) fn recheck_primary(&self) {
        if let Self::Sentinel(sentinel) = self {
            sentinel.recheck_primary();
        }
    }

    /// The cluster, if this is one.
    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        match self {
            Self::Cluster(cluster) => Some(cluster),
            Self::Standalone(_) | Self::Sentinel(_) => None,
        }
    }
}

impl Route<'_> {
    /// Gets the connection, opening it if there is none.
    pub(crate) async fn connection(&self) -> Result<ConnectionHandle, StoreError> {
        match self {
            Self::Standalone(connection) => connection.get().await,
            Self::Sentinel(sentinel) => sentinel.connection().await,
            Self::Node(node) => node.connection().await,
        }
    }
}

/// Shows the addresses of the servers.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Standalone(connection) => f.write_str(connection.address()),
            Self::Sentinel(sentinel) => sentinel.fmt(f),
            Self::Cluster(cluster) => cluster.fmt(f),
        }
    }
}
