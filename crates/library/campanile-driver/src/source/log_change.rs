//! Changes of a partition's log after which its offsets mean something else.

use std::sync::Arc;

use campanile_core::telemetry::LogChangeKind;

use crate::source::Assignment;

/// A change of the log of a partition.
#[derive(Debug)]
pub struct LogChange {
    /// The partition.
    pub partition: Arc<Assignment>,
    /// What has changed.
    pub what: LogChanged,
}

/// What has happened to a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogChanged {
    /// The topic was deleted and recreated.
    Recreated {
        /// The id of the log that is gone.
        old_id: Arc<str>,
        /// The id of the log that has replaced it.
        new_id: Arc<str>,
    },
    /// The records from the position up to the log's start were deleted before they were read.
    Deleted {
        /// The offset that was to be read next.
        position: i64,
        /// The first offset of the log.
        start: i64,
    },
    /// The records from this offset up to the position, which were read, are no longer in the log.
    Truncated {
        /// The offset that was to be read next.
        position: i64,
        /// The offset of the record that was read instead.
        offset: i64,
    },
}

impl LogChange {
    pub(crate) fn kind(&self) -> LogChangeKind {
        match self.what {
            LogChanged::Recreated { .. } => LogChangeKind::Recreated,
            LogChanged::Deleted { .. } => LogChangeKind::Deleted,
            LogChanged::Truncated { .. } => LogChangeKind::Truncated,
        }
    }

    pub(crate) fn log(&self) {
        let (topic, partition) = (&*self.partition.topic, self.partition.partition);
        match &self.what {
            LogChanged::Recreated { old_id, new_id } => tracing::error!(
                topic,
                partition,
                old_id = &**old_id,
                new_id = &**new_id,
                "the topic was deleted and recreated: offsets of the old topic are not committed, and the new \
                 topic is read from its beginning"
            ),
            LogChanged::Deleted { position, start } => tracing::error!(
                topic,
                partition,
                position,
                start,
                lost = start - position,
                "records were deleted before they were read, by the topic's retention or by an operator, unless \
                 all of these offsets were markers of transactions: continuing at the start of the log; raise \
                 the retention, or speed up the consumer"
            ),
            LogChanged::Truncated { position, offset } => tracing::error!(
                topic,
                partition,
                position,
                offset,
                "the brokers have lost the end of the partition, such as by an unclean leader election: \
                 records up to the position were read and no longer exist; continuing at the offset"
            ),
        }
    }
}
