//! A Redis Cluster, in which each slot has a master that can change.

#[cfg(test)]
mod fuzz;
mod node;
mod slots;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use campanile_core::{BoxError, Namespace};
use campanile_idempotency::StoreError;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::cmd;
use tokio::runtime::Handle;

pub(crate) use self::node::Node;
use self::slots::SlotMap;
pub(crate) use self::slots::{Address, slot_of};
use crate::connection::SharedConnection;
use crate::connector::{Connector, Endpoint};
use crate::failure;
use crate::topology::vote::Vote;

/// The pause between two queries for the slot map, and between two checks of an unavailable node.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// The masters of a cluster, with one connection to each.
pub(crate) struct Cluster(Arc<ClusterInner>);

struct ClusterInner {
    connector: Connector,
    /// The addresses to ask when none of the known masters answers.
    seeds: Box<[Address]>,
    command_timeout: Duration,
    state: Mutex<ClusterState>,
    is_refreshing: AtomicBool,
    this: Weak<Self>,
}

#[derive(Default)]
struct ClusterState {
    map: SlotMap,
    /// The slots that redirections have moved since the map was fetched.
    moved_slots: BTreeMap<u16, Address>,
    nodes: BTreeMap<Address, Arc<Node>>,
    /// The namespaces that have had their bucket count checked since the cluster last changed.
    buckets_checked: BTreeSet<Namespace>,
}

impl Cluster {
    /// Creates a cluster without any known slots.
    pub(crate) fn new(
        connector: Connector,
        seeds: Box<[Address]>,
        command_timeout: Duration,
    ) -> Self {
        Self(Arc::new_cyclic(|this| ClusterInner {
            connector,
            seeds,
            command_timeout,
            state: Mutex::default(),
            is_refreshing: AtomicBool::new(false),
            this: this.clone(),
        }))
    }

    /// The same cluster, over connections of its own.
    pub(crate) fn with_new_connections(&self) -> Self {
        let ClusterInner { connector, seeds, command_timeout, .. } = &*self.0;
        let cluster = Self::new(connector.clone(), seeds.clone(), *command_timeout);
        cluster.0.state().map = self.0.state().map.clone();
        cluster
    }

    /// The server at this address.
    pub(crate) fn endpoint(&self, address: &Address) -> Endpoint {
        self.0.connector.endpoint(address)
    }

    /// Fetches the slot map. Returns the masters, of which there is at least one.
    pub(crate) async fn fetch_masters(&self) -> Result<Vec<Address>, BoxError> {
        self.0.refresh_slots().await?;
        Ok(self.0.state().map.masters().into_iter().cloned().collect())
    }

    /// The masters of the known slots, in a fixed order, and a hash of which slots each of them has.
    pub(crate) fn masters(&self) -> (Vec<Arc<Node>>, u64) {
        let mut state = self.0.state();
        let mut hasher = DefaultHasher::new();
        state.map.hash(&mut hasher);
        (self.0.master_nodes(&mut state), hasher.finish())
    }

    /// Fetches the slot map in the background, unless that is already under way.
    pub(crate) fn spawn_refresh(&self) {
        // Without a runtime no call is waiting for a slot either.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if !self.0.is_refreshing.swap(true, Ordering::Relaxed) {
            let guard = RefreshGuard(Arc::clone(&self.0));
            runtime.spawn(async move {
                // If no node answers, the next call that finds no master for its slot starts
                // another query.
                let _ = guard.0.refresh_slots().await;
                // Limits the rate: a node that rejects commands requests a refresh with every call.
                tokio::time::sleep(PROBE_INTERVAL).await;
            });
        }
    }

    /// Looks up the master of a slot.
    pub(crate) fn master_of(&self, slot: u16) -> Result<Arc<Node>, StoreError> {
        let mut state = self.0.state();
        let master = state.moved_slots.get(&slot).or_else(|| state.map.master_of(slot)).cloned();
        if let Some(master) = master {
            return Ok(self.0.get_or_create_node(&mut state, master));
        }
        drop(state);
        self.spawn_refresh();
        Err(StoreError::not_sent(format!("no node of the cluster serves slot {slot}")))
    }

    /// Looks up the node at an address that a redirection has named.
    pub(crate) fn node_at(&self, address: Address) -> Arc<Node> {
        self.0.get_or_create_node(&mut self.0.state(), address)
    }

    /// Records a redirection of the slot to another node.
    pub(crate) fn record_move(&self, slot: u16, master: Address) {
        self.0.state().moved_slots.insert(slot, master);
        self.spawn_refresh();
    }

    /// Tells whether the namespace's bucket count has been checked since the cluster last changed.
    pub(crate) fn has_checked_buckets(&self, namespace: &Namespace) -> bool {
        self.0.state().buckets_checked.contains(namespace)
    }

    /// Records that the namespace's bucket count has been checked.
    pub(crate) fn set_buckets_checked(&self, namespace: &Namespace) {
        self.0.state().buckets_checked.insert(namespace.clone());
    }
}

impl ClusterInner {
    fn state(&self) -> MutexGuard<'_, ClusterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get_or_create_node(&self, state: &mut ClusterState, address: Address) -> Arc<Node> {
        let new_node = || {
            let connection = self.connector.connection(&address);
            Arc::new(Node::new(address.clone(), connection, self.this.clone()))
        };
        state.nodes.entry(address.clone()).or_insert_with(new_node).clone()
    }

    /// The masters of the known slots, in a fixed order.
    fn master_nodes(&self, state: &mut ClusterState) -> Vec<Arc<Node>> {
        let addresses: Vec<_> = state.map.masters().into_iter().cloned().collect();
        let node = |address| self.get_or_create_node(state, address);
        addresses.into_iter().map(node).collect()
    }

    /// Checks whether the node is a master with slots.
    fn is_master(&self, node: &Node) -> bool {
        self.state().map.masters().contains(&node.address)
    }

    /// Fetches the slot map from the masters that answer, or from the seeds if there are none, and
    /// believes the majority: a node that is cut off from the others reports an outdated map.
    async fn refresh_slots(&self) -> Result<(), BoxError> {
        // Also those that no call has needed yet: they know which replica has taken over from
        // another master, even if no seed is left.
        let masters = self.master_nodes(&mut self.state());
        let available = masters.iter().filter(|node| !node.is_unavailable());
        let connections = available.map(|node| node.shared_connection().clone()).collect();
        let map = match self.majority_map(connections).await {
            Ok(map) => map,
            Err(_) => {
                let seeds = self.seeds.iter().map(|seed| self.connector.connection(seed));
                self.majority_map(seeds.collect()).await?
            }
        };
        let mut state = self.state();
        let ClusterState { nodes, moved_slots, map: known, buckets_checked } = &mut *state;
        moved_slots.clear();
        if *known != map {
            tracing::debug!(?map, "the slots of the Redis cluster have changed");
            let masters = map.masters();
            nodes.retain(|address, _| masters.contains(address));
            // The new master of a slot may have lost its data.
            buckets_checked.clear();
            *known = map;
        }
        Ok(())
    }

    /// Asks these nodes for the slot map and picks the map that most of them report. Stops once
    /// more than half of them agree.
    async fn majority_map(&self, nodes: Vec<Arc<SharedConnection>>) -> Result<SlotMap, BoxError> {
        let mut queries: FuturesUnordered<_> =
            nodes.iter().map(|node| self.query_slots(node)).collect();
        let mut vote = Vote::new(nodes.len());
        let mut last_error: BoxError = "no cluster node is known".into();
        while let Some(answer) = queries.next().await {
            match answer {
                Ok(map) => {
                    if vote.add(map) {
                        break;
                    }
                }
                Err(error) => last_error = error,
            }
        }
        vote.into_reports().next().ok_or(last_error)
    }

    async fn query_slots(&self, node: &Arc<SharedConnection>) -> Result<SlotMap, BoxError> {
        let query = async {
            let mut handle = node.get().await?;
            let mut command = cmd("CLUSTER");
            command.arg("SLOTS");
            let reply = failure::check_reply(handle.connection.send_packed_command(&command).await);
            Ok::<_, BoxError>(reply.map_err(StoreError::from)?)
        };
        let reply = tokio::time::timeout(self.command_timeout, query).await??;
        let unknown = || format!("invalid CLUSTER SLOTS reply from Redis at {}", node.address());
        SlotMap::parse(&reply, node.host()).ok_or_else(|| unknown().into())
    }
}

/// Allows the next query on drop, however this one ends.
struct RefreshGuard(Arc<ClusterInner>);

impl Drop for RefreshGuard {
    fn drop(&mut self) {
        self.0.is_refreshing.store(false, Ordering::Relaxed);
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the cluster of ")?;
        for (place, seed) in self.0.seeds.iter().enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            write!(f, "{separator}{seed}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
