//! librdkafka's consumer, as the [`Source`](crate::driver::Source) of the driver.
//!
//! * `source` is the source itself, `context` what librdkafka calls back.
//! * `queues` says which partitions share one of librdkafka's queues.
//! * `taken` has the records of one round, and `failed` what errors in their place mean.
//! * `start` waits for brokers and topics before the group is joined.
//! * `message` makes records of messages; `to_record` does so for those who consume by themselves.
//! * `commit` says what a commit's failure means.
//! * `native` has what rdkafka's safe interface lacks.

mod commit;
mod context;
mod failed;
mod message;
mod native;
mod queues;
mod source;
mod start;
mod taken;
mod to_record;

use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;

pub(crate) use self::context::SourceWaker;
pub(crate) use self::source::KafkaSource;
pub use self::to_record::ToRecord;
use crate::driver::{Control, Usage};
use crate::retry_topics::Rungs;
use crate::transaction::Terms;

/// What the source is made with.
pub(crate) struct Settings {
    pub(crate) client: ClientConfig,
    pub(crate) brokers: String,
    pub(crate) topics: Vec<String>,
    /// The retry topics among the topics.
    pub(crate) rungs: Rungs,
    /// Topics that must exist as well.
    pub(crate) dead_letter_topics: Vec<Arc<str>>,
    pub(crate) start_timeout: Duration,
    /// What is in memory of all partitions; shared with the driver.
    pub(crate) total: Arc<Usage>,
    pub(crate) control: Arc<Control>,
    /// Present where offsets are committed in transactions.
    pub(crate) transactions: Option<Terms>,
}
