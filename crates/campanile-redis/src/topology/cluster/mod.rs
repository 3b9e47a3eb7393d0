//! A Redis Cluster, in which each slot has a master that can change.

mod node;
mod slots;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use campanile_core::{BoxError, Namespace};
use campanile_idempotency::StoreError;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{ConnectionInfo, cmd};
use tokio::runtime::Handle;

pub(crate) use self::node::Node;
use self::slots::SlotMap;
pub(crate) use self::slots::{Address, slot_of};
use crate::access::Access;
use crate::connection::Connections;
use crate::failure;

/// The pause between two queries for the slot map, and between two checks of a node that is away.
const LOOK: Duration = Duration::from_millis(100);

/// The masters of a cluster, with one connection to each.
pub(crate) struct Cluster(Arc<Inner>);

struct Inner {
    access: Access,
    /// The addresses to ask when none of the known masters answers.
    seeds: Box<[Address]>,
    command_timeout: Duration,
    state: Mutex<State>,
    is_learning: AtomicBool,
    this: Weak<Self>,
}

#[derive(Default)]
struct State {
    map: SlotMap,
    /// The slots that redirections have moved since the map was fetched.
    moved: BTreeMap<u16, Address>,
    nodes: BTreeMap<Address, Arc<Node>>,
    /// The namespaces that have had their bucket count checked, with `false` if the cluster has
    /// changed since.
    compared: BTreeMap<Namespace, bool>,
}

impl Cluster {
    /// Creates a cluster without any known slots.
    pub(crate) fn new(access: Access, seeds: Box<[Address]>, command_timeout: Duration) -> Self {
        Self(Arc::new_cyclic(|this| Inner {
            access,
            seeds,
            command_timeout,
            state: Mutex::default(),
            is_learning: AtomicBool::new(false),
            this: this.clone(),
        }))
    }

    /// The same cluster, over connections of its own.
    pub(crate) fn another(&self) -> Self {
        let Inner { access, seeds, command_timeout, .. } = &*self.0;
        let another = Self::new(access.clone(), seeds.clone(), *command_timeout);
        another.0.state().map = self.0.state().map.clone();
        another
    }

    /// The connection info of the server at this address.
    pub(crate) fn info(&self, address: &Address) -> ConnectionInfo {
        self.0.access.info(address)
    }

    /// Fetches the slot map. Returns the masters, of which there is at least one.
    pub(crate) async fn masters(&self) -> Result<Vec<Address>, BoxError> {
        self.0.learn().await?;
        Ok(self.0.state().map.owners().into_iter().cloned().collect())
    }

    /// Fetches the slot map in the background, unless that is already under way.
    pub(crate) fn refresh(&self) {
        self.0.refresh();
    }

    /// Looks up the master of a slot.
    pub(crate) fn owner(&self, slot: u16) -> Result<Arc<Node>, StoreError> {
        let mut state = self.0.state();
        let owner = state.moved.get(&slot).or_else(|| state.map.owner(slot)).cloned();
        if let Some(owner) = owner {
            return Ok(self.0.node(&mut state, owner));
        }
        drop(state);
        self.refresh();
        Err(StoreError::not_sent(format!("no node of the cluster serves slot {slot}")))
    }

    /// Looks up the node at an address that a redirection has named.
    pub(crate) fn named(&self, address: Address) -> Arc<Node> {
        self.0.node(&mut self.0.state(), address)
    }

    /// Records a redirection of the slot to another node.
    pub(crate) fn moved(&self, slot: u16, owner: Address) {
        self.0.state().moved.insert(slot, owner);
        self.refresh();
    }

    /// Returns `None` if the namespace's bucket count has been checked, otherwise whether it was
    /// checked before the cluster changed.
    pub(crate) fn is_to_compare(&self, namespace: &Namespace) -> Option<bool> {
        match self.0.state().compared.get(namespace) {
            Some(true) => None,
            Some(false) => Some(true),
            None => Some(false),
        }
    }

    /// Records that the namespace's bucket count has been checked.
    pub(crate) fn note_compared(&self, namespace: &Namespace) {
        self.0.state().compared.insert(namespace.clone(), true);
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn node(&self, state: &mut State, address: Address) -> Arc<Node> {
        let make = || {
            let connections = self.access.connections(&address);
            Arc::new(Node::new(address.clone(), connections, self.this.clone()))
        };
        state.nodes.entry(address.clone()).or_insert_with(make).clone()
    }

    /// Checks whether the node is a master with slots.
    fn serves(&self, node: &Node) -> bool {
        let state = self.state();
        state.nodes.contains_key(&node.address) && state.map.owners().contains(&node.address)
    }

    fn refresh(&self) {
        // Without a runtime no call is waiting for a slot either.
        let (Ok(runtime), Some(this)) = (Handle::try_current(), self.this.upgrade()) else {
            return;
        };
        if !self.is_learning.swap(true, Ordering::Relaxed) {
            let learning = Learning(this);
            runtime.spawn(async move {
                // If no node answers, the next call that finds no master for its slot starts
                // another query.
                let _ = learning.0.learn().await;
                // Limits the rate: a node that rejects commands requests a refresh with every call.
                tokio::time::sleep(LOOK).await;
            });
        }
    }

    /// Fetches the slot map from the masters that answer, or from the seeds if there are none, and
    /// believes the majority: a node that is cut off from the others reports an outdated map.
    async fn learn(&self) -> Result<(), BoxError> {
        let known: Vec<_> = {
            let state = self.state();
            let masters = state.map.owners().into_iter().filter_map(|owner| state.nodes.get(owner));
            masters.filter(|node| !node.is_away()).map(|node| node.connections().clone()).collect()
        };
        let map = match self.most_told(known).await {
            Ok(map) => map,
            Err(_) => {
                let seeds = self.seeds.iter().map(|seed| self.access.connections(seed));
                self.most_told(seeds.collect()).await?
            }
        };
        let mut state = self.state();
        let State { nodes, moved, map: known, compared } = &mut *state;
        moved.clear();
        if *known != map {
            tracing::debug!(?map, "the slots of the Redis cluster have changed");
            let owners = map.owners();
            nodes.retain(|address, _| owners.contains(address));
            // The new master of a slot may have lost its data.
            compared.values_mut().for_each(|is_as_it_was| *is_as_it_was = false);
            *known = map;
        }
        Ok(())
    }

    /// Asks these nodes for the slot map and picks the map that most of them report. Stops once
    /// more than half of them agree.
    async fn most_told(&self, nodes: Vec<Arc<Connections>>) -> Result<SlotMap, BoxError> {
        let enough = nodes.len() / 2 + 1;
        let mut asked: FuturesUnordered<_> = nodes.iter().map(|node| self.ask(node)).collect();
        let mut told: Vec<(SlotMap, usize)> = Vec::new();
        let mut failed: BoxError = "no cluster node is known".into();
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(map) => match told.iter_mut().find(|(other, _)| *other == map) {
                    Some((_, times)) => *times += 1,
                    None => told.push((map, 1)),
                },
                Err(error) => failed = error,
            }
            if told.iter().any(|(_, times)| *times >= enough) {
                break;
            }
        }
        told.into_iter().max_by_key(|(_, times)| *times).map(|(map, _)| map).ok_or(failed)
    }

    async fn ask(&self, node: &Arc<Connections>) -> Result<SlotMap, BoxError> {
        let asked = async {
            let mut link = node.link().await?;
            let mut slots = cmd("CLUSTER");
            slots.arg("SLOTS");
            let reply = failure::value(link.connection.send_packed_command(&slots).await);
            Ok::<_, BoxError>(reply.map_err(StoreError::from)?)
        };
        let reply = tokio::time::timeout(self.command_timeout, asked).await??;
        let unknown = || format!("invalid CLUSTER SLOTS reply from Redis at {}", node.address());
        SlotMap::read(&reply, node.host()).ok_or_else(|| unknown().into())
    }
}

/// Allows the next query on drop, however this one ends.
struct Learning(Arc<Inner>);

impl Drop for Learning {
    fn drop(&mut self) {
        self.0.is_learning.store(false, Ordering::Relaxed);
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
