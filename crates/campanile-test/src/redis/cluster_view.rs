//! A cluster as seen by one of its nodes.

/// Number of hash slots of a cluster.
pub(super) const SLOTS: usize = 16_384;

/// The contents of `CLUSTER INFO` and `CLUSTER NODES`. Nodes are identified by their ports.
pub(super) struct View {
    is_ok: bool,
    lines: Vec<Line>,
}

/// A node, as seen by another.
struct Line {
    id: String,
    port: u16,
    is_failed: bool,
    /// The id of the master, if the node is a replica.
    master: Option<String>,
    slots: Vec<(u16, u16)>,
}

impl View {
    pub(super) fn read(info: &str, nodes: &str) -> Self {
        let lines = nodes.lines().filter_map(Line::parse).collect();
        Self { is_ok: info.contains("cluster_state:ok"), lines }
    }

    pub(super) fn owner(&self, slot: u16) -> Option<u16> {
        let has = |line: &&Line| line.slots.iter().any(|&(a, b)| (a..=b).contains(&slot));
        Some(self.lines.iter().find(has)?.port)
    }

    /// Finds the replicas of a master that have not failed.
    pub(super) fn replicas(&self, port: u16) -> Vec<u16> {
        let Some(master) = self.lines.iter().find(|line| line.port == port) else {
            return Vec::new();
        };
        let follows = |line: &&Line| !line.is_failed && line.master.as_ref() == Some(&master.id);
        self.lines.iter().filter(follows).map(|line| line.port).collect()
    }

    /// Checks whether all slots are served and the cluster has this many replicas.
    pub(super) fn is_whole(&self, replicas: usize) -> bool {
        let followers = self.lines.iter().filter(|line| line.master.is_some()).count();
        let slots = self.lines.iter().flat_map(|line| &line.slots);
        let served: usize = slots.map(|&(first, last)| usize::from(last - first) + 1).sum();
        self.is_ok && followers == replicas && served == SLOTS
    }
}

impl Line {
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
