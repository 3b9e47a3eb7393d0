//! Runs a contestant in its own process, so that its resource usage is measured separately.

use std::env;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use campanile::BoxError;

use super::measured::Measured;
use super::task::{Contestant, Task, Threads};
use super::{by_hand, no_op, product};

/// The first argument of this program when it runs as a child. The second argument is the task.
pub(crate) const CONTESTANT: &str = "contestant";

/// How long a run may exceed its limit, to join the group and to exit.
const GRACE: Duration = Duration::from_secs(60);

/// Runs a task in a child process.
///
/// # Errors
/// Fails if the child fails or prints no result.
pub(super) fn spawn(task: &Task) -> Result<Measured, BoxError> {
    let output = Command::new(env::current_exe()?)
        .arg(CONTESTANT)
        .arg(serde_json::to_string(task)?)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    // A subscriber may have printed the lines before the last one.
    match printed.lines().last().map(serde_json::from_str) {
        Some(Ok(measured)) if output.status.success() => Ok(measured),
        _ => Err(format!("{:?} failed ({}):\n{printed}", task.contestant, output.status).into()),
    }
}

/// The main function of the child process.
///
/// # Errors
/// Fails with the contestant's error.
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
    // Exits without waiting for the background work of a handwritten contestant.
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
        // The faster of the two runtimes for each of these.
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
