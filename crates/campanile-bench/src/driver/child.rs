//! A contestant runs in a process of its own, so that what it uses is its own.

use std::env;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use campanile::BoxError;

use super::measured::Measured;
use super::task::{Contestant, Task, Threads};
use super::{by_hand, no_op, product};

/// The first argument of this program as a child; the second is the task.
pub(crate) const CONTESTANT: &str = "contestant";

/// What a run may take beyond its limit: the join of the group, and the end.
const GRACE: Duration = Duration::from_secs(60);

/// Runs a task in a child process.
///
/// # Errors
/// When the child fails, or prints no result.
pub(super) fn spawn(task: &Task) -> Result<Measured, BoxError> {
    let output = Command::new(env::current_exe()?)
        .arg(CONTESTANT)
        .arg(serde_json::to_string(task)?)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    // What stands before the last line is a subscriber's.
    match printed.lines().last().map(serde_json::from_str) {
        Some(Ok(measured)) if output.status.success() => Ok(measured),
        _ => Err(format!("{:?} failed ({}):\n{printed}", task.contestant, output.status).into()),
    }
}

/// What the child process does.
///
/// # Errors
/// The contestant's.
pub(crate) fn main(task: &str) -> Result<(), BoxError> {
    let task: Task = serde_json::from_str(task)?;
    let deadline = task.limit + GRACE;
    thread::spawn(move || {
        thread::sleep(deadline);
        eprintln!("a contestant has not ended within {deadline:?}");
        std::process::exit(1);
    });
    let measured = run(&task)?;
    println!("{}", serde_json::to_string(&measured)?);
    // What a contestant by hand leaves behind is not waited for.
    std::process::exit(0)
}

fn run(task: &Task) -> Result<Measured, BoxError> {
    match task.contestant {
        Contestant::Guarded { order, threads, subscriber } => {
            if subscriber {
                tracing_subscriber::fmt::init();
            }
            threads.runtime()?.block_on(product::run(task, order))
        }
        Contestant::NoOp { order, threads } => {
            threads.runtime()?.block_on(no_op::driver(task, order))
        }
        Contestant::Latency { threads } => threads.runtime()?.block_on(product::latency(task)),
        Contestant::Stalled => Threads::Two.runtime()?.block_on(no_op::stalled(task)),
        // The faster runtime for each of these.
        Contestant::Partitions => {
            Threads::Current.runtime()?.block_on(by_hand::partitions::run(task))
        }
        Contestant::Concurrent => {
            Threads::Current.runtime()?.block_on(by_hand::concurrent::run(task))
        }
        Contestant::Tutorial => Threads::Current.runtime()?.block_on(by_hand::tutorial::run(task)),
        Contestant::RoundTrips => {
            Threads::Current.runtime()?.block_on(by_hand::round_trips::run(task))
        }
        Contestant::Bare => no_op::bare(task),
    }
}
