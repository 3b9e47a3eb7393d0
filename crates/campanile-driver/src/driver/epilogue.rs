//! What happens to a record that was not processed, before its offset may be committed.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{BoxError, ConfigError, Record};
use futures_util::future::BoxFuture;

use super::delay::Delay;
use crate::error::ConsumerError;
use crate::give_up::GiveUpLock;

/// Takes over records that were not processed, so that their partitions continue without them.
pub trait Epilogue: Send + Sync {
    /// Checks a topic of which a partition is assigned.
    ///
    /// # Errors
    /// Fails if the topic must not be consumed.
    fn check_topic(&self, topic: &Arc<str>) -> Result<(), ConfigError>;

    /// Checks a record of a partition with a delay.
    ///
    /// # Errors
    /// Fails if this consumer must not process the record.
    fn check_delayed(&self, record: &Record) -> Result<(), ConsumerError>;

    /// Takes over a record whose attempt has failed, and which is to be tried again after this time, or
    /// after a backoff. `None` if it is to be tried again in its place. `from` is the delay that the
    /// record has had.
    fn retry(
        &self,
        record: &Record,
        from: Option<Delay>,
        after: Option<Duration>,
    ) -> Option<RetryElsewhere>;

    /// Takes over a record that is given up, with its lock.
    fn give_up(&self, given_up: GivenUp<'_>) -> BoxFuture<'static, EpilogueResult>;
}

/// A record that will be tried again in another place.
pub struct RetryElsewhere {
    pub topic: Arc<str>,
    pub after: Duration,
    pub published: BoxFuture<'static, EpilogueResult>,
}

/// A record that is given up.
pub struct GivenUp<'a> {
    pub record: Record,
    pub error: &'a (dyn Error + 'static),
    /// The error as the key's entry keeps it.
    pub reason: String,
    pub lock: GiveUpLock,
    /// Whether the record was given up before, and kept.
    pub is_repeated: bool,
}

/// The record is finished, and its offset may be committed.
pub type EpilogueResult = Result<(), Unfinished>;

/// Why a record is not finished.
#[derive(Debug)]
pub enum Unfinished {
    /// The record keeps its place. It is handled again after this time, or after the driver's own backoff.
    Kept { after: Option<Duration>, failure: Option<Failure> },
    /// Its lock was lost, or its entry cannot be written.
    Unsettled(BoxError),
}

/// What the status shows of a record that is kept.
#[derive(Debug)]
pub struct Failure {
    pub error: String,
    pub waits_for: &'static str,
}
