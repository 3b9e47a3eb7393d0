use campanile_core::{Answer, Command};
use tokio::time::Instant;

use super::Fault;

/// One call that reached a [`FaultyStore`](super::FaultyStore).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Call {
    /// When the call arrived, on tokio's time.
    pub at: Instant,
    /// The commands of the call: a single command or a batch.
    pub commands: Vec<Command>,
    /// The fault injected into the call.
    pub fault: Option<Fault>,
    /// The inner store's answers, whether or not the caller received them. Empty until the call is
    /// applied; errors are omitted.
    pub answers: Vec<Answer>,
}

impl Call {
    /// Counts how many commands of the call have this name, such as `acquire` or `renew`.
    pub fn count(&self, operation: &str) -> usize {
        let named = |command: &&Command| command.operation.name() == operation;
        self.commands.iter().filter(named).count()
    }
}
