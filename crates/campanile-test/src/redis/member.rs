use super::server::RedisServer;
use crate::ServerError;

/// A server among several, and whether it can be asked something.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) server: RedisServer,
    /// It was neither killed nor paused.
    pub(super) running: bool,
}

impl Member {
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

    /// What one command answers; `None` when it cannot be asked, or refuses.
    pub(super) fn ask(&self, args: &[&str]) -> Option<String> {
        if self.running { self.server.cli(args).ok() } else { None }
    }
}
