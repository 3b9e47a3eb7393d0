use super::builder::RedisServerBuilder;
use super::cluster_view::{ClusterView, SLOTS};
use super::node::Node;
use super::server::RedisServer;
use crate::{ServerError, eventually, port};
use std::io;
use std::time::Duration;

/// Time limit for the nodes to find each other, and to learn of a moved slot.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a replica is told to take over, and how long to wait for it each time. A takeover that takes
/// longer than five seconds, as on a busy machine, is abandoned.
const PROMOTION_ATTEMPTS: u32 = 10;
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(6);

/// How long a node may be unresponsive before the others consider it failed, in milliseconds.
const NODE_TIMEOUT: &str = "1000";

/// Moves all keys of a slot. A script, because keys are arbitrary bytes.
const MIGRATE_SCRIPT: &str = "
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
/// Nodes are numbered from 0: first the masters, then the replicas. Node `masters + i` starts as a
/// replica of master `i % masters`. A node that does not respond for a second
/// (`cluster-node-timeout`, see [`RedisClusterBuilder::config`]) is considered failed. Its replica
/// takes over about a second later; without a replica, the node's slots are unavailable while the
/// others are served.
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
#[must_use = "the servers are killed when this is dropped"]
pub struct RedisCluster {
    nodes: Vec<Node>,
    password: Option<String>,
}

/// Builder for a [`RedisCluster`]; see [`RedisCluster::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RedisClusterBuilder {
    masters: usize,
    replicas: usize,
    node: RedisServerBuilder,
    /// Lines of the configuration, which follow the test kit's own.
    lines: Vec<(String, String)>,
}

impl RedisClusterBuilder {
    /// Sets the number of masters, which share the slots evenly. Default: 3, the fewest that can
    /// agree on which of them failed.
    ///
    /// # Panics
    ///
    /// Panics if `masters` is zero.
    pub fn masters(mut self, masters: usize) -> Self {
        assert!(masters > 0, "a cluster needs at least one master");
        self.masters = masters;
        self
    }

    /// Sets the number of replicas per master. Default: none, because replicas double the startup
    /// time.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Starts nodes of Valkey instead of Redis, as [`RedisServerBuilder::valkey`] does.
    pub fn valkey(mut self) -> Self {
        self.node = self.node.valkey();
        self
    }

    /// Sets a password for the default user of each node. Default: none.
    ///
    /// # Panics
    ///
    /// Panics as [`RedisServerBuilder::password`] does.
    pub fn password(mut self, password: &str) -> Self {
        self.node = self.node.password(password).config("masterauth", password);
        self
    }

    /// Adds a line to each node's `redis.conf`, as [`RedisServerBuilder::config`] does: it takes
    /// precedence over the test kit's own settings. With a longer `cluster-node-timeout` (in
    /// milliseconds), a busy node is not considered failed.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.lines.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the nodes and waits until they serve all slots and each replica has synchronized. A
    /// replica that has never synchronized would not be promoted.
    ///
    /// # Errors
    ///
    /// Fails as [`RedisServerBuilder::start`] does, or if the nodes do not find each other within
    /// 60 s.
    pub fn start(self) -> Result<RedisCluster, ServerError> {
        let count = self.masters * (1 + self.replicas);
        let nodes: Result<Vec<_>, _> = (0..count).map(|_| self.start_node()).collect();
        let nodes: Vec<_> = nodes?.into_iter().map(Node::new).collect();
        let cluster = RedisCluster { nodes, password: self.node.password.clone() };
        cluster.join(self.masters)?;
        Ok(cluster)
    }

    fn start_node(&self) -> Result<RedisServer, ServerError> {
        // The bus port also lies in the range for tests. By default, it would be 10 000 above the
        // client port.
        port::with_free_port(|bus| {
            let node = self
                .node
                .clone()
                .config("cluster-enabled", "yes")
                .config("cluster-port", &bus.to_string())
                .config("cluster-node-timeout", NODE_TIMEOUT)
                .config("cluster-replica-validity-factor", "0")
                // One unavailable shard does not stop the others.
                .config("cluster-require-full-coverage", "no")
                .config("repl-diskless-sync-delay", "0");
            let lines = self.lines.iter();
            lines.fold(node, |node, (name, value)| node.config(name, value)).start()
        })
    }
}

impl RedisCluster {
    /// Starts three masters without replicas.
    ///
    /// # Errors
    ///
    /// Fails as [`RedisClusterBuilder::start`] does.
    pub fn start() -> Result<Self, ServerError> {
        Self::builder().start()
    }

    /// Creates a builder, for a cluster with other settings.
    pub fn builder() -> RedisClusterBuilder {
        RedisClusterBuilder {
            masters: 3,
            replicas: 0,
            node: RedisServer::builder(),
            lines: Vec::new(),
        }
    }

    /// Lists the URLs of all nodes, from which a client discovers the cluster.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.server.url()).collect()
    }

    /// The number of nodes, including dead ones.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Checks whether the cluster has no nodes, which is never the case.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// A node of the cluster.
    ///
    /// # Panics
    ///
    /// Panics if no node has this number, as all methods that take a node do.
    pub fn node(&self, node: usize) -> &RedisServer {
        &self.nodes[node].server
    }

    /// Computes the hash slot of a key.
    ///
    /// # Errors
    ///
    /// Fails if no node answers.
    pub fn slot_of(&self, key: &str) -> io::Result<u16> {
        let slot = self.query_any(&["CLUSTER", "KEYSLOT", key])?;
        slot.parse().map_err(io::Error::other)
    }

    /// Finds the node that serves the slot, as far as the running nodes know.
    pub fn owner_of(&self, slot: u16) -> Option<usize> {
        self.running().find_map(|node| self.node_with_port(self.view_of(node)?.owner(slot)?))
    }

    /// Finds the replicas of a master that are known to run.
    pub fn replicas_of(&self, master: usize) -> Vec<usize> {
        let view = self.running().find_map(|node| self.view_of(node));
        let ports = view.map(|view| view.replicas(self.node(master).port())).unwrap_or_default();
        ports.into_iter().filter_map(|port| self.node_with_port(port)).collect()
    }

    /// Kills a node with SIGKILL, as in a crash.
    ///
    /// # Errors
    ///
    /// Fails as [`RedisServer::kill`] does. The methods below fail like the methods of the same
    /// name there.
    pub fn kill(&mut self, node: usize) -> Result<(), ServerError> {
        self.nodes[node].kill()
    }

    /// Restarts a node, which rejoins the cluster by itself.
    ///
    /// # Errors
    ///
    /// See [`kill`](Self::kill).
    pub fn restart(&mut self, node: usize) -> Result<(), ServerError> {
        self.nodes[node].restart()
    }

    /// Suspends a node (SIGSTOP).
    ///
    /// # Errors
    ///
    /// See [`kill`](Self::kill).
    pub fn pause(&mut self, node: usize) -> Result<(), ServerError> {
        self.nodes[node].pause()
    }

    /// Resumes a paused node.
    ///
    /// # Errors
    ///
    /// See [`kill`](Self::kill).
    pub fn resume(&mut self, node: usize) -> Result<(), ServerError> {
        self.nodes[node].resume()
    }

    /// Makes a replica take over from its master, which continues as a replica. Waits until the
    /// replica has taken over, which it may also have done by itself.
    ///
    /// # Errors
    ///
    /// Fails if the node is not a master within 60 s.
    pub fn promote(&mut self, replica: usize) -> io::Result<()> {
        let is_master = || {
            let role = self.nodes[replica].query(&["ROLE"])?;
            role.starts_with("master").then_some(())
        };
        let mut asked = Ok(String::new());
        for _ in 0..PROMOTION_ATTEMPTS {
            // Refused if the replica has taken over since the last check.
            asked = self.node(replica).cli(&["CLUSTER", "FAILOVER"]);
            if eventually(PROMOTION_TIMEOUT, is_master).is_some() {
                return Ok(());
            }
        }
        asked?;
        Err(timed_out("waiting for the replica to take over"))
    }

    /// Moves a slot and its keys to another master, as an operator does when resharding a live
    /// cluster.
    ///
    /// # Errors
    ///
    /// Fails if a node refuses or no node owns the slot.
    pub fn move_slot(&mut self, slot: u16, to: usize) -> io::Result<()> {
        self.begin_move(slot, to)?;
        self.end_move(slot, to)
    }

    /// The first half of [`move_slot`](Self::move_slot): the slot is migrating, none of its keys
    /// have moved, and new keys are created at the other master.
    ///
    /// # Errors
    ///
    /// See [`move_slot`](Self::move_slot).
    /// See [`move_slot`](Self::move_slot).
    pub fn begin_move(&mut self, slot: u16, to: usize) -> io::Result<()> {
        let from = self.require_owner(slot)?;
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
        let from = self.require_owner(slot)?;
        let (name, port) = (slot.to_string(), self.node(to).port().to_string());
        let password = self.password.as_deref().unwrap_or_default();
        let migrate = ["EVAL", MIGRATE_SCRIPT, "0", &name, &port, password];
        while self.node(from).cli(&migrate)? != "0" {}
        let id = self.node(to).cli(&["CLUSTER", "MYID"])?;
        // The new owner learns of the change first: if the slot had no owner in between, requests
        // for its keys would be refused.
        for node in [to, from] {
            self.node(node).cli(&["CLUSTER", "SETSLOT", &name, "NODE", &id])?;
        }
        self.wait_until("waiting for every node to learn the slot's new owner", || {
            let to = self.node(to).port();
            let mut owners = self.running().map(|node| self.view_of(node)?.owner(slot));
            owners.all(|owner| owner == Some(to)).then_some(())
        })
    }

    fn require_owner(&self, slot: u16) -> io::Result<usize> {
        self.owner_of(slot).ok_or_else(|| io::Error::other(format!("no node serves slot {slot}")))
    }

    /// Assigns slots to the masters, introduces all nodes to each other, and waits until the
    /// cluster is complete.
    fn join(&self, masters: usize) -> Result<(), ServerError> {
        for (index, node) in self.nodes.iter().take(masters).enumerate() {
            let [first, end] = [index, index + 1].map(|index| index * SLOTS / masters);
            let [first, last] = [first, end - 1].map(|slot| slot.to_string());
            node.server.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
            node.server.cli(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])?;
        }
        // Every node meets every other: with gossip alone, the last introduction takes seconds.
        for (index, node) in self.nodes.iter().enumerate() {
            let port = node.server.port().to_string();
            let bus = node.server.cli(&["CONFIG", "GET", "cluster-port"])?;
            let bus = bus.lines().last().unwrap_or_default();
            for other in &self.nodes[..index] {
                other.server.cli(&["CLUSTER", "MEET", "127.0.0.1", &port, bus])?;
            }
        }
        for (index, node) in self.nodes.iter().enumerate().skip(masters) {
            let id = self.node(index % masters).cli(&["CLUSTER", "MYID"])?;
            // The command is refused until the replica knows its master.
            let replicate = || node.query(&["CLUSTER", "REPLICATE", &id]).map(drop);
            self.wait_until("waiting for the replicas to learn their masters", replicate)?;
        }
        self.wait_until(
            "waiting for all slots to be served and all replicas to be synced",
            || {
                let serves = |node| Some(self.view_of(node)?.is_complete(self.len() - masters));
                let all_serve = self.running().all(|node| serves(node) == Some(true));
                let linked = |node: &Node| {
                    let info = node.query(&["INFO", "replication"]);
                    info.is_some_and(|info| info.contains("master_link_status:up"))
                };
                (all_serve && self.nodes.iter().skip(masters).all(linked)).then_some(())
            },
        )?;
        Ok(())
    }

    fn wait_until(&self, what: &str, check: impl FnMut() -> Option<()>) -> io::Result<()> {
        eventually(CONVERGENCE_TIMEOUT, check).ok_or_else(|| timed_out(what))
    }

    fn running(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(|&node| self.nodes[node].running)
    }

    fn query_any(&self, args: &[&str]) -> io::Result<String> {
        let mut answers = self.nodes.iter().filter_map(|node| node.query(args));
        answers.next().ok_or_else(|| io::Error::other("no node answers"))
    }

    fn node_with_port(&self, port: u16) -> Option<usize> {
        self.nodes.iter().position(|node| node.server.port() == port)
    }

    fn view_of(&self, node: usize) -> Option<ClusterView> {
        let info = self.nodes[node].query(&["CLUSTER", "INFO"])?;
        let nodes = self.nodes[node].query(&["CLUSTER", "NODES"])?;
        Some(ClusterView::parse(&info, &nodes))
    }
}

fn timed_out(what: &str) -> io::Error {
    io::Error::other(format!("timed out after {CONVERGENCE_TIMEOUT:?} {what}"))
}
