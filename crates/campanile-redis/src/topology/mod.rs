//! The servers of a store, and which of them has a key.

mod cluster;
mod sentinel;

use std::fmt;
use std::sync::Arc;

use campanile_core::BoxError;
use campanile_idempotency::StoreError;
use redis::ConnectionInfo;

pub(crate) use self::cluster::{Address, Cluster, Node, slot_of};
pub(crate) use self::sentinel::{NoPrimary, Sentinel};
use crate::connection::{Connections, Link};

/// The servers of a store and the connections to them.
pub(crate) enum Topology {
    /// A single server.
    Standalone(Arc<Connections>),
    /// The primary that sentinels name.
    Sentinel(Box<Sentinel>),
    /// The masters of a cluster.
    Cluster(Cluster),
}

/// The server that a command is sent to and answered by.
#[derive(Clone)]
pub(crate) enum Route<'a> {
    Standalone(&'a Arc<Connections>),
    Sentinel(&'a Sentinel),
    Node(Arc<Node>),
}

impl Topology {
    /// Finds the route to a slot. Only a cluster has more than one route.
    pub(crate) fn route(&self, slot: u16) -> Result<Route<'_>, StoreError> {
        Ok(match self {
            Self::Standalone(connections) => Route::Standalone(connections),
            Self::Sentinel(sentinel) => Route::Sentinel(sentinel),
            Self::Cluster(cluster) => Route::Node(cluster.owner(slot)?),
        })
    }

    /// The same servers, over connections of its own.
    pub(crate) fn another(&self) -> Self {
        match self {
            Self::Standalone(connections) => Self::Standalone(connections.another()),
            Self::Sentinel(sentinel) => Self::Sentinel(Box::new(sentinel.another())),
            Self::Cluster(cluster) => Self::Cluster(cluster.another()),
        }
    }

    /// Finds the servers that accept writes now.
    pub(crate) async fn primaries(&self) -> Result<Vec<ConnectionInfo>, BoxError> {
        Ok(match self {
            Self::Standalone(connections) => vec![connections.info().clone()],
            Self::Sentinel(sentinel) => vec![sentinel.info().await?],
            Self::Cluster(cluster) => {
                let masters = cluster.masters().await?;
                masters.iter().map(|address| cluster.info(address)).collect()
            }
        })
    }

    /// Notes that a write did not reach the replicas: the primary may have been replaced unnoticed.
    pub(crate) fn doubt(&self) {
        if let Self::Sentinel(sentinel) = self {
            sentinel.doubt();
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
    pub(crate) async fn link(&self) -> Result<Link, StoreError> {
        match self {
            Self::Standalone(connections) => connections.link().await,
            Self::Sentinel(sentinel) => sentinel.link().await,
            Self::Node(node) => node.link().await,
        }
    }
}

/// Shows the addresses of the servers.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Standalone(connections) => f.write_str(connections.address()),
            Self::Sentinel(sentinel) => sentinel.fmt(f),
            Self::Cluster(cluster) => cluster.fmt(f),
        }
    }
}
