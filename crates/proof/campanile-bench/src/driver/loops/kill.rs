//! Kills a contestant in the middle of its work, and starts it again.

use std::path::Path;
use std::time::Duration;

use campanile::BoxError;
use campanile_test::{Process, eventually};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Offset, TopicPartitionList};

use super::LIMIT;
use crate::driver::child;
use crate::driver::ledger::{self, Faults};
use crate::driver::runner::Runner;
use crate::driver::task::{Contestant, Task};
use crate::driver::topic::Topic;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How many of a hundred records have an effect when the process is killed.
pub(super) const KILLED_AT_PERCENT: u64 = 60;

/// Runs a contestant that is killed (SIGKILL) after a part of the effects, and again until all
/// records are committed. Counts the faults in the effects of both processes.
///
/// # Errors
/// Fails if a process ends by itself, or does not reach the end of the topic.
pub(super) fn run_with_kill(
    runner: &mut Runner,
    topic: &Topic,
    contestant: Contestant,
    folder: &Path,
) -> Result<Faults, BoxError> {
    runner.clear()?;
    let task = runner.task(topic, contestant, LIMIT);
    let path = folder.join(&task.group);
    // More records than are delivered: the contestants run until they are killed.
    let task = Task { records: u64::MAX, ledger: Some(path.clone()), ..task };
    let log = folder.join("log");

    let mut first = Process::spawn(&child::command(&task)?, &log)?;
    let killed_at = topic.records * KILLED_AT_PERCENT / 100;
    wait(&mut first, "the effects before the kill", || ledger::count(&path) >= killed_at)?;
    first.kill()?;

    let mut second = Process::spawn(&child::command(&task)?, &log)?;
    let group = runner.kafka.consumer_config(&task.group).create()?;
    wait(&mut second, "all commits", || is_committed(&group, topic))?;
    second.kill()?;
    Ok(Faults::count(&ledger::read(&path)?, topic.numbers()))
}

fn wait(
    process: &mut Process,
    what: &str,
    mut is_reached: impl FnMut() -> bool,
) -> Result<(), BoxError> {
    let reached = eventually(LIMIT, || match process.exited() {
        Ok(None) => is_reached().then_some(Ok(())),
        ended => Some(Err(format!("a contestant has ended: {ended:?}"))),
    });
    let error = match reached {
        Some(Ok(())) => return Ok(()),
        Some(Err(error)) => error,
        None => format!("timed out after {LIMIT:?} waiting for {what}"),
    };
    Err(format!("{error}\n{}", process.log()?).into())
}

/// Returns whether the group has committed the end of each partition. A broker that does not
/// answer is asked again.
fn is_committed(group: &BaseConsumer, topic: &Topic) -> bool {
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition_range(topic.name, 0, topic.partitions - 1);
    let Ok(committed) = group.committed_offsets(partitions, REQUEST_TIMEOUT) else {
        return false;
    };
    committed.elements().iter().all(|partition| {
        let ends = group.fetch_watermarks(topic.name, partition.partition(), REQUEST_TIMEOUT);
        ends.is_ok_and(|(_, end)| partition.offset() == Offset::Offset(end))
    })
}
