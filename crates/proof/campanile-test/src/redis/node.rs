use super::server::RedisServer;
use crate::ServerError;

/// A server of a group, and whether it can be queried.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) server: RedisServer,
    /// Whether the server was neither killed nor paused.
    pub(super) running: bool,
}

impl Node {
    pub(super) fn new(server: RedisServer) -> Self {
        Self { server, running: true }
    }

    pub(super) fn kill(&mut self) -> Result<(), ServerError> {
        self.running = false;
        self.server.kill()
    }

    pub(super) fn restart(&mut self) -> Result<(), ServerError> {
        self.server.restart()?;
        self.running = true;
        Ok(())
    }

    pub(super) fn pause(&mut self) -> Result<(), ServerError> {
        self.running = false;
        self.server.pause()
    }

    pub(super) fn resume(&mut self) -> Result<(), ServerError> {
        self.server.resume()?;
        self.running = true;
        Ok(())
    }

    /// Runs a command and reads its reply. `None` means that the server does not run or that the
    /// command failed.
    pub(super) fn query(&self, args: &[&str]) -> Option<String> {
        if self.running { self.server.cli(args).ok() } else { None }
    }
}
