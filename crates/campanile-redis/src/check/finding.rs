//! What was found, and how strictly it is taken.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// How strictly [`RedisStore::connect`](crate::RedisStore::connect) takes what it finds.
///
/// Whatever is accepted is told as an event, once, and by
/// [`RedisStore::findings`](crate::RedisStore::findings).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Safety {
    /// A server on which the protocol does not hold ([`Severity::Breaks`]) is refused. The default.
    #[default]
    Refuse,
    /// No server is refused: locks and completions may vanish without anybody noticing, and commands
    /// may fail for good.
    Warn,
    /// The server is not looked at; only a connection is made.
    Off,
}

/// How bad a [`Finding`] is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Severity {
    /// Good to know; an event at INFO.
    Notice,
    /// A fault of the server loses what it has acknowledged; an event at WARN.
    Loses,
    /// The protocol does not hold, or commands fail, without any fault. Refused, unless the
    /// [`Safety`] says otherwise; then an event at WARN.
    Breaks,
}

/// What a [`Finding`] is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FindingKind {
    /// Keys are evicted when the memory is full. Breaks.
    Eviction,
    /// The server is a replica: it takes no writes. Breaks.
    Replica,
    /// The server is too old for the scripts, or for `WAITAOF` where that is asked for. Breaks.
    Version,
    /// The server is part of a cluster, and is not used as one. Breaks.
    Cluster,
    /// The user may not do what the store needs. Breaks.
    Permission,
    /// The user may not use the keys of every namespace, and the store does not know which it will
    /// be used for. Loses nothing, but what is not allowed fails at the first record.
    Keys,
    /// There is no append-only file. Loses.
    Persistence,
    /// The append-only file is not synced with every write. Loses; a notice for `everysec`.
    Fsync,
    /// There is no replica. Loses.
    Replicas,
    /// Writes are acknowledged although no replica receives them. Loses.
    MinReplicas,
    /// The server's clock and ours are more than a second apart. Loses.
    Clock,
    /// The server does not let itself be looked at. A notice.
    Unseen,
}

/// Something about a server that can lose what the store keeps there: what it is, what that could
/// cost, and what mends it. `Display` says all three.
#[derive(Clone, Debug)]
pub struct Finding(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kind: FindingKind,
    severity: Severity,
    address: Box<str>,
    seen: Cow<'static, str>,
    risk: &'static str,
    remedy: &'static str,
}

impl Finding {
    pub(super) fn new(
        (kind, severity): (FindingKind, Severity),
        address: &str,
        seen: impl Into<Cow<'static, str>>,
        risk: &'static str,
        remedy: &'static str,
    ) -> Self {
        let (address, seen) = (address.into(), seen.into());
        Self(Arc::new(Inner { kind, severity, address, seen, risk, remedy }))
    }

    /// What it is about.
    pub fn kind(&self) -> FindingKind {
        self.0.kind
    }

    /// How bad it is.
    pub fn severity(&self) -> Severity {
        self.0.severity
    }

    /// Which server it is about.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// What was seen there, such as `appendonly no`.
    pub fn seen(&self) -> &str {
        &self.0.seen
    }

    /// What could be lost by it.
    pub fn risk(&self) -> &str {
        self.0.risk
    }

    /// The setting that mends it.
    pub fn remedy(&self) -> &str {
        self.0.remedy
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { seen, risk, remedy, .. } = &*self.0;
        write!(f, "{seen}: {risk}; {remedy}")
    }
}
