//! Keeps the processors from sleeping.
//!
//! A processor of a virtual machine that sleeps between two records takes time to wake up, which is counted
//! nowhere: an idle machine hides half of what a consumer costs.

use std::process::{Child, Command, Stdio};

use campanile::BoxError;

/// A loop of the lowest priority for each processor. Dropping it ends them.
pub(super) struct Awake(Vec<Child>);

impl Awake {
    pub(super) fn start() -> Result<Self, BoxError> {
        let mut awake = Self(Vec::new());
        for _ in 0..std::thread::available_parallelism()?.get() {
            let mut nice = Command::new("nice");
            nice.args(["-n", "19", "sh", "-c", "while :; do :; done"]);
            awake.0.push(nice.stdin(Stdio::null()).spawn()?);
        }
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
