//! Bugs that tests plant around the store, in its server, its network and its keeper, to verify that the
//! simulation finds them.

use std::cell::Cell;

use campanile_test::simulation::KeeperBug;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// A script that is not cached does not run, and is answered as if it had its usual outcome.
    UncachedScriptAnswered,
    /// A new connection begins with a reply that the previous one has lost.
    StaleReply,
    /// A connection that is no longer answered is used again.
    ConnectionKept,
    /// One of the keeper.
    Keeper(KeeperBug),
}

impl Bug {
    pub(super) const ALL: [Self; 10] = [
        Self::UncachedScriptAnswered,
        Self::StaleReply,
        Self::ConnectionKept,
        Self::Keeper(KeeperBug::RepeatedWithFreshNonce),
        Self::Keeper(KeeperBug::CancelNotSent),
        Self::Keeper(KeeperBug::RenewalNotSent),
        Self::Keeper(KeeperBug::RenewalResultIgnored),
        Self::Keeper(KeeperBug::CompletionNotRepeated),
        Self::Keeper(KeeperBug::StepNotRepeated),
        Self::Keeper(KeeperBug::FailureNotSent),
    ];
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

pub(super) fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// The bug of the keeper that is planted, if any.
pub(super) fn keeper_bug() -> Option<KeeperBug> {
    match PLANTED.get() {
        Some(Bug::Keeper(bug)) => Some(bug),
        _ => None,
    }
}

pub(super) fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}
