//! Commands that run one program: servers for manual use, and benchmarks.

use crate::Result;
use crate::document::Block;
use crate::install::install;
use crate::progress::{Progress, cargo};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::time::Duration;

/// The comparison with loops written by hand.
const LOOPS: Block<'_> = Block {
    name: "bench loops",
    documents: &["README.md", "docs/choosing.md"],
    written_by: "bench loops --write",
};

/// The time limit of building and running the comparison: several times its duration.
const LOOPS_TIMEOUT: Duration = Duration::from_secs(2 * 60 * 60);

/// Starts Kafka, Redis and Postgres for manual use.
pub(crate) fn servers(progress: &Progress, args: &[OsString]) -> Result {
    install(progress)?;
    let mut command = cargo();
    command
        .args(["run", "--package", "campanile-test", "--example", "servers"])
        .arg("--")
        .args(args);
    // Replaces this process, so that only the servers handle Ctrl-C.
    Err(command.exec().into())
}

/// Runs the benchmarks.
pub(crate) fn bench(progress: &Progress, args: &[OsString]) -> Result {
    install(progress)?;
    let mut command = cargo();
    command.args(BENCH).args(args);
    Err(command.exec().into())
}

/// Compares loops written by hand with Campanile, and writes the table into the documents.
pub(crate) fn write_loops(progress: &Progress) -> Result {
    install(progress)?;
    let mut command = cargo();
    command.args(BENCH).arg("loops");
    LOOPS.write(|| {
        progress.supervise(&mut command, LOOPS_TIMEOUT, &mut io::stdout())?.check("the benchmark")
    })
}

/// Cargo's arguments for the benchmarks.
const BENCH: [&str; 5] = ["run", "--release", "--package", "campanile-bench", "--"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_have_the_same_table_of_loops() {
        let blocks = LOOPS.read().unwrap();
        assert!(blocks[0].contains("| consumer |"), "{}", blocks[0]);
        assert_eq!(blocks[0], blocks[1]);
    }
}
