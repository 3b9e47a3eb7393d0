//! Findings about a server, and how strictly they are treated.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// How strictly [`RedisStore::connect`](crate::RedisStore::connect) treats what it finds.
///
/// Every accepted finding is logged once, and returned by
/// [`RedisStore::findings`](crate::RedisStore::findings).
///
/// It applies for as long as the store is used: settings that become unsafe later are logged, and a
/// store that refuses such a server grants no locks on it until they are corrected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Safety {
    /// Refuses a server on which the protocol does not hold ([`Severity::Unsafe`]). The default.
    #[default]
    Refuse,
    /// Refuses no server. Locks and completions may disappear without any error, and commands may
    /// fail permanently.
    Warn,
    /// Opens a connection without inspecting the server.
    Off,
}

/// The severity of a [`Finding`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Severity {
    /// Worth knowing. Logged at INFO.
    Notice,
    /// A failure of the server loses what it has acknowledged. Logged at WARN.
    DataLoss,
    /// The protocol does not hold, or commands fail, even without a failure. The server is refused,
    /// unless [`Safety`] accepts it; then logged at WARN.
    Unsafe,
}

/// What a [`Finding`] is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FindingKind {
    /// The server evicts keys when its memory is full. Severity: `Unsafe`.
    Eviction,
    /// The server is a replica, which accepts no writes. Severity: `Unsafe`.
    Replica,
    /// The server is too old for the scripts, or for `WAITAOF` if that is configured. Severity:
    /// `Unsafe`.
    Version,
    /// The server is a node of a cluster but is not configured as one. Severity: `Unsafe`.
    Cluster,
    /// The user lacks a permission that the store needs. Severity: `Unsafe`.
    Permission,
    /// The user has no access to the keys of every namespace, and the namespaces of the store are
    /// not configured. Nothing is lost, but a namespace without access fails at its first record.
    /// Severity: `DataLoss`.
    KeyAccess,
    /// The server has no append-only file. Severity: `DataLoss`.
    Persistence,
    /// The append-only file is not synced with every write. Severity: `DataLoss`, or `Notice` for
    /// `everysec`.
    Fsync,
    /// The server has no replica. Severity: `DataLoss`.
    Replicas,
    /// The server acknowledges writes even if no replica receives them. Severity: `DataLoss`.
    MinReplicas,
    /// The clocks of the server and the client differ by more than a second. Severity: `DataLoss`.
    Clock,
    /// A configured namespace was first used with another number of buckets, so that the store would
    /// not find its entries. Severity: `Unsafe`.
    Buckets,
    /// The server's memory is almost full. Severity: `Notice`.
    Memory,
    /// The user may not inspect the server. Severity: `Notice`.
    NotInspected,
}

/// A problem of a server that can lose what the store keeps there: what was seen, what that could
/// cost, and how to fix it. `Display` shows all three.
#[derive(Clone, Debug)]
pub struct Finding(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kind: FindingKind,
    severity: Severity,
    address: Box<str>,
    observed: Cow<'static, str>,
    risk: &'static str,
    remedy: &'static str,
}

impl Finding {
    pub(super) fn new(
        (kind, severity): (FindingKind, Severity),
        address: &str,
        observed: impl Into<Cow<'static, str>>,
        risk: &'static str,
        remedy: &'static str,
    ) -> Self {
        let (address, observed) = (address.into(), observed.into());
        Self(Arc::new(Inner { kind, severity, address, observed, risk, remedy }))
    }

    /// The finding without the values that it has seen. The risk tells findings of one kind apart.
    pub(super) fn id(&self) -> (Severity, &'static str) {
        (self.0.severity, self.0.risk)
    }

    /// What the finding is about.
    pub fn kind(&self) -> FindingKind {
        self.0.kind
    }

    /// The severity of the finding.
    pub fn severity(&self) -> Severity {
        self.0.severity
    }

    /// The address of the server.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// What was seen on the server, such as `appendonly no`.
    pub fn observed(&self) -> &str {
        &self.0.observed
    }

    /// What could be lost.
    pub fn risk(&self) -> &str {
        self.0.risk
    }

    /// The setting that fixes the problem.
    pub fn remedy(&self) -> &str {
        self.0.remedy
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { observed, risk, remedy, .. } = &*self.0;
        write!(f, "{observed}: {risk}; {remedy}")
    }
}
