use campanile_core::{Answer, Command};
use tokio::time::Instant;

use super::Fault;

/// One call that reached a [`FaultyStore`](super::FaultyStore).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Call {
    /// When it came, by tokio's time.
    pub at: Instant,
    /// What was to be applied; a single command or a batch.
    pub commands: Vec<Command>,
    /// What happened to it.
    pub fault: Option<Fault>,
    /// What the store inside answered, whether or not the caller learnt it. Empty as long as it was
    /// not applied; an error is left out.
    pub answers: Vec<Answer>,
}

impl Call {
    /// How many of its commands have this word: `acquire`, `renew`, and so on.
    pub fn count(&self, operation: &str) -> usize {
        let named = |command: &&Command| command.operation.name() == operation;
        self.commands.iter().filter(named).count()
    }
}
