//! A cluster as seen by one of its nodes.

/// Number of hash slots of a cluster.
pub(super) const SLOTS: usize = 16_384;

/// The contents of `CLUSTER INFO` and `CLUSTER NODES`. Nodes are identified by their ports.
pub(super) struct ClusterView {
    is_ok: bool,
    nodes: Vec<NodeInfo>,
}

/// A node, as seen by another.
struct NodeInfo {
    id: String,
    port: u16,
    is_failed: bool,
    /// The id of the master, if the node is a replica.
    master: Option<String>,
    slots: Vec<(u16, u16)>,
}

impl ClusterView {
    pub(super) fn parse(info: &str, nodes: &str) -> Self {
        let nodes = nodes.lines().filter_map(NodeInfo::parse).collect();
        Self { is_ok: info.contains("cluster_state:ok"), nodes }
    }

    pub(super) fn owner(&self, slot: u16) -> Option<u16> {
        let has = |node: &&NodeInfo| node.slots.iter().any(|&(a, b)| (a..=b).contains(&slot));
        Some(self.nodes.iter().find(has)?.port)
    }

    /// Finds the replicas of a master that have not failed.
    pub(super) fn replicas(&self, port: u16) -> Vec<u16> {
        let Some(master) = self.nodes.iter().find(|node| node.port == port) else {
            return Vec::new();
        };
        let follows =
            |node: &&NodeInfo| !node.is_failed && node.master.as_ref() == Some(&master.id);
        self.nodes.iter().filter(follows).map(|node| node.port).collect()
    }

    /// Checks whether all slots are served and the cluster has this many replicas.
    pub(super) fn is_complete(&self, replicas: usize) -> bool {
        let followers = self.nodes.iter().filter(|node| node.master.is_some()).count();
        let slots = self.nodes.iter().flat_map(|node| &node.slots);
        let served: usize = slots.map(|&(first, last)| usize::from(last - first) + 1).sum();
        self.is_ok && followers == replicas && served == SLOTS
    }
}

impl NodeInfo {
    /// Parses `id ip:port@bus flags master ping pong epoch link slots…`. A slot in brackets is
    /// migrating.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let id = words.next()?.to_owned();
        let (_, port) = words.next()?.split('@').next()?.rsplit_once(':')?;
        let is_failed = words.next()?.split(',').any(|flag| flag == "fail");
        let master = words.next().filter(|&id| id != "-").map(str::to_owned);
        let slots = words.skip(4).filter(|range| !range.starts_with('['));
        let slots = slots.filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some((first.parse().ok()?, last.parse().ok()?))
        });
        Some(Self { id, port: port.parse().ok()?, is_failed, master, slots: slots.collect() })
    }
}
