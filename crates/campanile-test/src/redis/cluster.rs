use super::builder::RedisServerBuilder;
use super::member::Member;
use super::server::RedisServer;
use super::view::{SLOTS, View};
use crate::{ServerError, eventually, port};
use std::io;
use std::time::Duration;

/// How long the nodes may take to find each other, and a failover that was asked for.
const SETTLE: Duration = Duration::from_secs(30);

/// How long a node is not answered before the others take it for failed.
const NODE_TIMEOUT: &str = "1000";

/// Moves all keys of a slot. In a script, because the keys are arbitrary bytes.
const MIGRATE: &str = "
    local slot, port, password = ARGV[1], ARGV[2], ARGV[3]
    local keys = redis.call('CLUSTER', 'GETKEYSINSLOT', slot, 100)
    if #keys == 0 then return 0 end
    if password == '' then
        redis.call('MIGRATE', '127.0.0.1', port, '', 0, 5000, 'KEYS', unpack(keys))
    else
        redis.call('MIGRATE', '127.0.0.1', port, '', 0, 5000, 'AUTH', password, 'KEYS', unpack(keys))
    end
    return #keys";

/// A Redis Cluster of child processes, killed on drop.
///
/// Nodes are counted from 0: first the masters, then the replicas, of which node `masters + i`
/// begins as one of master `i % masters`. A node that does not answer for a second is taken for
/// failed; its replica takes over about a second later, and without one its slots stay away while
/// the others are served.
///
/// ```no_run
/// use campanile_test::RedisCluster;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut cluster = RedisCluster::builder().replicas(1).start()?;
/// let slot = cluster.slot_of("bell")?;
/// let owner = cluster.owner_of(slot).expect("every slot has one");
/// cluster.kill(owner)?; // a replica takes over
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Member>,
    password: Option<String>,
}

/// How a [`RedisCluster`] is started; made by [`RedisCluster::builder`].
#[derive(Clone, Debug)]
pub struct RedisClusterBuilder {
    masters: usize,
    replicas: usize,
    node: RedisServerBuilder,
}

impl RedisClusterBuilder {
    /// How many masters share the slots evenly. Default: 3, which is the fewest that can tell
    /// which of them failed.
    ///
    /// # Panics
    ///
    /// When it is zero.
    pub fn masters(mut self, masters: usize) -> Self {
        assert!(masters > 0, "a cluster has a master");
        self.masters = masters;
        self
    }

    /// How many replicas each master has. Default: none, because they double the start.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// A password for the default user of each node. Default: none.
    ///
    /// # Panics
    ///
    /// As [`RedisServerBuilder::password`].
    pub fn password(mut self, password: &str) -> Self {
        self.node = self.node.password(password).config("masterauth", password);
        self
    }

    /// One line of each node's `redis.conf`, as [`RedisServerBuilder::config`].
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.node = self.node.config(name, value);
        self
    }

    /// Starts the nodes and waits until they serve all slots, and each replica has synchronised: one
    /// that never has would not be promoted.
    ///
    /// # Errors
    ///
    /// As [`RedisServerBuilder::start`]; and when the nodes do not find each other within 30 s.
    pub fn start(self) -> Result<RedisCluster, ServerError> {
        let count = self.masters * (1 + self.replicas);
        let nodes: Result<Vec<_>, _> = (0..count).map(|_| start_node(&self.node)).collect();
        let nodes: Vec<_> = nodes?.into_iter().map(Member::new).collect();
        let cluster = RedisCluster { nodes, password: self.node.password.clone() };
        cluster.join(self.masters)?;
        Ok(cluster)
    }
}

fn start_node(settings: &RedisServerBuilder) -> Result<RedisServer, ServerError> {
    // The bus, too, lies in the range of ports for tests; by default it is 10 000 above the other.
    port::with_free_port(|bus| {
        settings
            .clone()
            .config("cluster-enabled", "yes")
            .config("cluster-port", &bus.to_string())
            .config("cluster-node-timeout", NODE_TIMEOUT)
            .config("cluster-replica-validity-factor", "0")
            // One shard that is away does not stop the others.
            .config("cluster-require-full-coverage", "no")
            .config("repl-diskless-sync-delay", "0")
            .start()
    })
}

impl RedisCluster {
    /// Starts three masters without replicas.
    ///
    /// # Errors
    ///
    /// As [`RedisClusterBuilder::start`].
    pub fn start() -> Result<Self, ServerError> {
        Self::builder().start()
    }

    /// A cluster with settings of its own.
    pub fn builder() -> RedisClusterBuilder {
        RedisClusterBuilder { masters: 3, replicas: 0, node: RedisServer::builder() }
    }

    /// The URLs of all nodes, from which a client finds the cluster.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.server.url()).collect()
    }

    /// How many nodes there are, the dead included.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no node, which is never so.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// One of the nodes.
    ///
    /// # Panics
    ///
    /// When there is none of this number, here and wherever one is named.
    pub fn node(&self, node: usize) -> &RedisServer {
        &self.nodes[node].server
    }

    /// The hash slot of a key.
    ///
    /// # Errors
    ///
    /// When no node answers.
    pub fn slot_of(&self, key: &str) -> io::Result<u16> {
        let slot = self.ask(&["CLUSTER", "KEYSLOT", key])?;
        slot.parse().map_err(io::Error::other)
    }

    /// The node that serves the slot, as far as the nodes know that run.
    pub fn owner_of(&self, slot: u16) -> Option<usize> {
        self.running().find_map(|node| self.with_port(self.view_of(node)?.owner(slot)?))
    }

    /// The replicas of a master that are known to run.
    pub fn replicas_of(&self, master: usize) -> Vec<usize> {
        let view = self.running().find_map(|node| self.view_of(node));
        let ports = view.map(|view| view.replicas(self.node(master).port())).unwrap_or_default();
        ports.into_iter().filter_map(|port| self.with_port(port)).collect()
    }

    /// Kills a node as a crash would (SIGKILL).
    ///
    /// # Errors
    ///
    /// As [`RedisServer::kill`], as do the following as those of the same name.
    pub fn kill(&mut self, node: usize) -> Result<(), ServerError> {
        self.nodes[node].kill()
    }

    /// Starts a node again, which finds its place in the cluster by itself.
    ///
    /// # Errors
    ///
    /// See [`kill`](Self::kill).
    pub fn restart(&mut self, node: usize) -> Result<(), ServerError> {
        self.nodes[node].restart()
    }

    /// Makes a node hang (SIGSTOP).
    ///
    /// # Errors
    ///
    /// See [`kill`](Self::kill).
    pub fn pause(&mut self, node: usize) -> Result<(), ServerError> {
        self.nodes[node].pause()
    }

    /// Lets a paused node go on.
    ///
    /// # Errors
    ///
    /// See [`kill`](Self::kill).
    pub fn resume(&mut self, node: usize) -> Result<(), ServerError> {
        self.nodes[node].resume()
    }

    /// Lets a replica take over from its master, which runs on as its replica; returns when it has.
    ///
    /// # Errors
    ///
    /// When the node is no replica, or does not become master within 30 s.
    pub fn promote(&mut self, replica: usize) -> io::Result<()> {
        self.node(replica).cli(&["CLUSTER", "FAILOVER"])?;
        self.settled("the replica takes over", || {
            let role = self.nodes[replica].ask(&["ROLE"])?;
            role.starts_with("master").then_some(())
        })
    }

    /// Moves a slot and its keys to another master, as an operator does who changes a cluster while
    /// it works.
    ///
    /// # Errors
    ///
    /// When a node refuses, or none has the slot.
    pub fn move_slot(&mut self, slot: u16, to: usize) -> io::Result<()> {
        self.begin_move(slot, to)?;
        self.end_move(slot, to)
    }

    /// The first half of [`move_slot`](Self::move_slot): the slot is on its way, none of its keys
    /// has moved, and new ones arise at the other master.
    ///
    /// # Errors
    ///
    /// See [`move_slot`](Self::move_slot).
    pub fn begin_move(&mut self, slot: u16, to: usize) -> io::Result<()> {
        let from = self.owner(slot)?;
        let name = slot.to_string();
        let set = |node: usize, state: &str, other: usize| {
            let id = self.node(other).cli(&["CLUSTER", "MYID"])?;
            self.node(node).cli(&["CLUSTER", "SETSLOT", &name, state, &id])
        };
        set(to, "IMPORTING", from)?;
        set(from, "MIGRATING", to)?;
        Ok(())
    }

    /// The second half of [`move_slot`](Self::move_slot).
    ///
    /// # Errors
    ///
    /// See [`move_slot`](Self::move_slot).
    pub fn end_move(&mut self, slot: u16, to: usize) -> io::Result<()> {
        let from = self.owner(slot)?;
        let (name, port) = (slot.to_string(), self.node(to).port().to_string());
        let password = self.password.as_deref().unwrap_or_default();
        let migrate = ["EVAL", MIGRATE, "0", &name, &port, password];
        while self.node(from).cli(&migrate)? != "0" {}
        let id = self.node(to).cli(&["CLUSTER", "MYID"])?;
        // The new owner first: were the slot nobody's in between, its keys would be refused.
        for node in [to, from] {
            self.node(node).cli(&["CLUSTER", "SETSLOT", &name, "NODE", &id])?;
        }
        self.settled("every node knows the slot's new owner", || {
            let to = self.node(to).port();
            let mut owners = self.running().map(|node| self.view_of(node)?.owner(slot));
            owners.all(|owner| owner == Some(to)).then_some(())
        })
    }

    fn owner(&self, slot: u16) -> io::Result<usize> {
        self.owner_of(slot).ok_or_else(|| io::Error::other(format!("nobody serves slot {slot}")))
    }

    /// Gives the masters their slots, introduces all to each other, and waits until that is done.
    fn join(&self, masters: usize) -> Result<(), ServerError> {
        for (place, node) in self.nodes.iter().take(masters).enumerate() {
            let [first, end] = [place, place + 1].map(|place| place * SLOTS / masters);
            let [first, last] = [first, end - 1].map(|slot| slot.to_string());
            node.server.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(place + 1).to_string()])?;
            node.server.cli(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])?;
        }
        // Each meets each: left to gossip, the last introduction takes seconds.
        for (place, node) in self.nodes.iter().enumerate() {
            let port = node.server.port().to_string();
            let bus = node.server.cli(&["CONFIG", "GET", "cluster-port"])?;
            let bus = bus.lines().last().unwrap_or_default();
            for other in &self.nodes[..place] {
                other.server.cli(&["CLUSTER", "MEET", "127.0.0.1", &port, bus])?;
            }
        }
        for (place, node) in self.nodes.iter().enumerate().skip(masters) {
            let id = self.node(place % masters).cli(&["CLUSTER", "MYID"])?;
            // It is refused until the replica knows its master.
            let replicate = || node.ask(&["CLUSTER", "REPLICATE", &id]).map(drop);
            self.settled("the replicas know their masters", replicate)?;
        }
        self.settled("the cluster serves all slots, and its replicas have synchronised", || {
            let serves = |node| Some(self.view_of(node)?.is_whole(self.len() - masters));
            let all_serve = self.running().all(|node| serves(node) == Some(true));
            let linked = |node: &Member| {
                let info = node.ask(&["INFO", "replication"]);
                info.is_some_and(|info| info.contains("master_link_status:up"))
            };
            (all_serve && self.nodes.iter().skip(masters).all(linked)).then_some(())
        })?;
        Ok(())
    }

    fn settled(&self, what: &str, check: impl FnMut() -> Option<()>) -> io::Result<()> {
        let late = || io::Error::other(format!("not within {SETTLE:?}: {what}"));
        eventually(SETTLE, check).ok_or_else(late)
    }

    fn running(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(|&node| self.nodes[node].running)
    }

    fn ask(&self, args: &[&str]) -> io::Result<String> {
        let mut answers = self.nodes.iter().filter_map(|node| node.ask(args));
        answers.next().ok_or_else(|| io::Error::other("no node answers"))
    }

    fn with_port(&self, port: u16) -> Option<usize> {
        self.nodes.iter().position(|node| node.server.port() == port)
    }

    fn view_of(&self, node: usize) -> Option<View> {
        let info = self.nodes[node].ask(&["CLUSTER", "INFO"])?;
        let nodes = self.nodes[node].ask(&["CLUSTER", "NODES"])?;
        Some(View::read(&info, &nodes))
    }
}
