//! The servers, and the contestants' turns on them.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use campanile::BoxError;
use campanile_test::{KafkaServer, RedisServer};

use super::Options;
use super::awake::Awake;
use super::child;
use super::measurement::Measurement;
use super::task::{Contestant, Task};
use super::topic::Topic;

/// One broker, one Redis without persistence, and the topics filled so far.
pub(super) struct Runner {
    pub(super) kafka: KafkaServer,
    pub(super) redis: RedisServer,
    pub(super) options: Options,
    /// As in [`Task::ledger`].
    pub(super) ledger: Option<PathBuf>,
    filled: HashSet<&'static str>,
    groups: u32,
    _awake: Option<Awake>,
}

impl Runner {
    pub(super) fn start(options: Options) -> Result<Self, BoxError> {
        Ok(Self {
            kafka: KafkaServer::start()?,
            redis: RedisServer::start()?,
            ledger: None,
            filled: HashSet::new(),
            groups: 0,
            _awake: options.awake.then(Awake::start).transpose()?,
            options,
        })
    }

    /// Runs the contestants in turns for several rounds. Clears Redis before each run.
    pub(super) fn rounds<const N: usize>(
        &mut self,
        topic: &Topic,
        contestants: [Contestant; N],
    ) -> Result<[Vec<Measurement>; N], BoxError> {
        self.rounds_after(topic, contestants, |runner| runner.clear())
    }

    /// Like [`rounds`](Self::rounds), with another preparation of each run.
    pub(super) fn rounds_after<const N: usize>(
        &mut self,
        topic: &Topic,
        contestants: [Contestant; N],
        mut prepare: impl FnMut(&mut Self) -> Result<(), BoxError>,
    ) -> Result<[Vec<Measurement>; N], BoxError> {
        self.fill(topic)?;
        let mut measurement = [const { Vec::new() }; N];
        for round in 0..self.options.rounds {
            for turn in 0..N {
                // The contestant that goes first rotates from round to round.
                let contestant_index = (round + turn) % N;
                prepare(self)?;
                measurement[contestant_index].push(self.run(
                    topic,
                    contestants[contestant_index],
                    self.options.limit,
                )?);
            }
        }
        Ok(measurement)
    }

    /// Runs a contestant once, with this time limit.
    pub(super) fn run(
        &mut self,
        topic: &Topic,
        contestant: Contestant,
        limit: Duration,
    ) -> Result<Measurement, BoxError> {
        child::run_in_child(&self.task(topic, contestant, limit))
    }

    /// Creates the task of a contestant, with a group of its own.
    pub(super) fn task(&mut self, topic: &Topic, contestant: Contestant, limit: Duration) -> Task {
        self.groups += 1;
        Task {
            contestant,
            brokers: self.kafka.bootstrap(),
            redis: self.redis.url(),
            servers: [self.redis.pid(), self.kafka.pid()],
            topic: topic.name.to_owned(),
            partitions: topic.partitions,
            group: format!("bench-{}", self.groups),
            records: topic.records,
            limit,
            timed: topic.timed,
            handler_time: topic.handler_time,
            ledger: self.ledger.clone(),
        }
    }

    /// Deletes all keys.
    pub(super) fn clear(&self) -> Result<(), BoxError> {
        self.redis.cli(&["FLUSHALL"])?;
        Ok(())
    }

    /// Marks a topic as filled.
    pub(super) fn mark_filled(&mut self, topic: &Topic) {
        self.filled.insert(topic.name);
    }

    /// Fills a topic unless it is already filled.
    pub(super) fn fill(&mut self, topic: &Topic) -> Result<(), BoxError> {
        if self.filled.insert(topic.name) {
            topic.fill(&self.kafka)?;
        }
        Ok(())
    }
}
