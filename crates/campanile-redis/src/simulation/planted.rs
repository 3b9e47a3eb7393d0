//! Bugs that tests plant in the store and the keeper, to verify that the simulation finds them.

use std::cell::Cell;

use campanile_test::simulation::KeeperBug;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The error that a script is not cached counts as its usual answer.
    UncachedScriptAnswered,
    /// A connection that broke, or did not answer in time, is used again.
    ConnectionKept,
    /// A new connection begins with a reply that the previous one has lost.
    StaleReply,
    /// One of the keeper.
    Keeper(KeeperBug),
}

impl Bug {
    pub(super) const ALL: [Self; 9] = [
        Self::UncachedScriptAnswered,
        Self::ConnectionKept,
        Self::StaleReply,
        Self::Keeper(KeeperBug::RepeatedWithFreshNonce),
        Self::Keeper(KeeperBug::CancelNotSent),
        Self::Keeper(KeeperBug::RenewalNotSent),
        Self::Keeper(KeeperBug::RenewalResultIgnored),
        Self::Keeper(KeeperBug::CompletionNotRepeated),
        Self::Keeper(KeeperBug::StepNotRepeated),
    ];
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

pub(crate) fn is_planted(bug: Bug) -> bool {
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
