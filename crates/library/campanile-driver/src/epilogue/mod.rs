//! What happens to a record that was not processed, before its offset may be committed.

mod give_up;

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{BoxError, ConfigError, Record};
use futures_util::future::{BoxFuture, ready};

pub(crate) use self::give_up::release_for_pause;
pub use self::give_up::{GiveUpAction, GiveUpLock, give_up, settle_for_stop};
use crate::error::ConsumerError;
use crate::source::Delay;

/// Takes over records that were not processed, so that their partitions continue without them.
pub trait Epilogue: Send + Sync {
    /// Checks a topic of which a partition is assigned.
    ///
    /// # Errors
    /// Fails if the topic must not be consumed.
    fn check_topic(&self, topic: &Arc<str>) -> Result<(), ConfigError> {
        let _ = topic;
        Ok(())
    }

    /// Checks a record of a partition with a delay.
    ///
    /// # Errors
    /// Fails if this consumer must not process the record.
    fn check_delayed(&self, record: &Record) -> Result<(), ConsumerError> {
        let _ = record;
        Ok(())
    }

    /// Takes over a record whose attempt has failed, and which is to be tried again after this time, or
    /// after a backoff. `None` if it is to be tried again in its place. `from` is the delay that the
    /// record has had.
    fn retry(
        &self,
        record: &Record,
        from: Option<Delay>,
        after: Option<Duration>,
    ) -> Option<RetryElsewhere> {
        let _ = (record, from, after);
        None
    }

    /// Takes over a record that is given up, with its lock.
    fn give_up(&self, given_up: GivenUp<'_>) -> BoxFuture<'static, EpilogueResult>;
}

/// Takes over no record.
pub(crate) struct NoEpilogue;

impl Epilogue for NoEpilogue {
    fn give_up(&self, _: GivenUp<'_>) -> BoxFuture<'static, EpilogueResult> {
        let failure = Failure {
            error: "records are to be handed over, and the driver has no epilogue".to_owned(),
            waits_for: "an epilogue",
        };
        Box::pin(ready(Err(Unfinished::Kept { after: None, failure: Some(failure) })))
    }
}

/// A record that will be tried again in another place.
pub struct RetryElsewhere {
    /// The topic of that place.
    pub topic: Arc<str>,
    /// How long the record waits there.
    pub after: Duration,
    /// Completes once the record is there.
    pub published: BoxFuture<'static, EpilogueResult>,
}

/// A record that is given up.
#[derive(Debug)]
pub struct GivenUp<'a> {
    /// The record.
    pub record: Record,
    /// The error of its last attempt.
    pub error: &'a (dyn Error + 'static),
    /// The error as the key's entry keeps it.
    pub reason: String,
    /// The lock that it still has. Settle it, for example by [`give_up`].
    pub lock: GiveUpLock,
    /// Whether the record was given up before, and kept.
    pub is_repeated: bool,
}

/// The record is finished, and its offset may be committed.
pub type EpilogueResult = Result<(), Unfinished>;

/// Why a record is not finished.
#[derive(Debug)]
pub enum Unfinished {
    /// The record keeps its place.
    Kept {
        /// When it is handled again. `None`: after the driver's own backoff.
        after: Option<Duration>,
        /// What the status shows. `None`: the failure of its last attempt.
        failure: Option<Failure>,
    },
    /// Its lock was lost, or its entry cannot be written.
    Unsettled(BoxError),
}

/// What the status shows of a record that is kept.
#[derive(Debug)]
pub struct Failure {
    /// Why it is kept.
    pub error: String,
    /// What it waits for.
    pub waits_for: &'static str,
}

impl fmt::Debug for RetryElsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryElsewhere").field("topic", &self.topic).finish_non_exhaustive()
    }
}
