//! Runs a contestant in its own process, so that its resource usage is measured separately.

use std::env;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use campanile::BoxError;
use metrics_exporter_prometheus::PrometheusBuilder;

use super::measurement::Measurement;
use super::task::{Contestant, RuntimeKind, Task, Telemetry};
use super::{baseline, no_op, product};

/// The first argument of this program when it runs as a child. The second argument is the task.
pub(crate) const CONTESTANT: &str = "contestant";

/// How long a run may exceed its limit, to join the group and to exit.
const GRACE_PERIOD: Duration = Duration::from_secs(60);

/// The command that runs a task.
pub(super) fn command(task: &Task) -> Result<Command, BoxError> {
    let mut command = Command::new(env::current_exe()?);
    command.arg(CONTESTANT).arg(serde_json::to_string(task)?).env_remove("RUST_LOG");
    Ok(command)
}

/// Runs a task in a child process.
///
/// # Errors
/// Fails if the child fails or prints no result.
pub(super) fn run_in_child(task: &Task) -> Result<Measurement, BoxError> {
    let output = command(task)?.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    // A subscriber may have printed the lines before the last one.
    match printed.lines().last().map(serde_json::from_str) {
        Some(Ok(measurement)) if output.status.success() => Ok(measurement),
        _ => Err(format!("{:?} failed ({}):\n{printed}", task.contestant, output.status).into()),
    }
}

/// The main function of the child process.
///
/// # Errors
/// Fails with the contestant's error.
pub(crate) fn run_contestant(task: &str) -> Result<(), BoxError> {
    let task: Task = serde_json::from_str(task)?;
    let deadline = task.limit + GRACE_PERIOD;
    thread::spawn(move || {
        thread::sleep(deadline);
        eprintln!("a contestant has not ended within {deadline:?}");
        std::process::exit(1);
    });
    let measurement = run(&task)?;
    println!("{}", serde_json::to_string(&measurement)?);
    // Exits without waiting for the background work of a handwritten contestant.
    std::process::exit(0)
}

fn run(task: &Task) -> Result<Measurement, BoxError> {
    match task.contestant {
        Contestant::Campanile { order, runtime, telemetry } => {
            match telemetry {
                Telemetry::None => {}
                Telemetry::Subscriber => tracing_subscriber::fmt::init(),
                Telemetry::Recorder => install_recorder()?,
            }
            runtime.build()?.block_on(product::run(task, order))
        }
        Contestant::NoOp { order, runtime } => {
            runtime.build()?.block_on(no_op::driver(task, order))
        }
        Contestant::Latency { runtime } => runtime.build()?.block_on(product::latency(task)),
        Contestant::Stalled => RuntimeKind::TwoWorkers.build()?.block_on(no_op::stalled(task)),
        // The faster of the two runtimes for each of these.
        Contestant::Tutorial => {
            RuntimeKind::CurrentThread.build()?.block_on(baseline::tutorial::run(task))
        }
        Contestant::Partitions(check) => {
            RuntimeKind::CurrentThread.build()?.block_on(baseline::partitions::run(task, check))
        }
        Contestant::Keyed => {
            RuntimeKind::CurrentThread.build()?.block_on(baseline::keyed::run(task))
        }
        Contestant::Concurrent => {
            RuntimeKind::CurrentThread.build()?.block_on(baseline::concurrent::run(task))
        }
        Contestant::RoundTrips => {
            RuntimeKind::CurrentThread.build()?.block_on(baseline::round_trips::run(task))
        }
        Contestant::Bare => no_op::bare(task),
    }
}

fn install_recorder() -> Result<(), BoxError> {
    let metrics = PrometheusBuilder::new().install_recorder()?;
    thread::spawn(move || {
        loop {
            thread::sleep(Duration::from_secs(1));
            std::hint::black_box(metrics.render());
        }
    });
    Ok(())
}
