//! Changes of a partition's log after which its offsets mean something else.

use std::sync::Arc;

use campanile_core::telemetry::LogChangeKind;

use super::assignment::Assignment;

/// A change of the log of a partition.
pub struct LogChange {
    pub partition: Arc<Assignment>,
    pub what: LogChanged,
}

/// What has happened to a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogChanged {
    /// The topic was deleted and recreated.
    Recreated { old_id: Arc<str>, new_id: Arc<str> },
    /// The records from the position up to the log's start were deleted before they were read.
    Deleted { position: i64, start: i64 },
    /// The records from this offset up to the position, which were read, are no longer in the log.
    Truncated { position: i64, offset: i64 },
}

impl LogChange {
    pub(super) fn kind(&self) -> LogChangeKind {
        match self.what {
            LogChanged::Recreated { .. } => LogChangeKind::Recreated,
            LogChanged::Deleted { .. } => LogChangeKind::Deleted,
            LogChanged::Truncated { .. } => LogChangeKind::Truncated,
        }
    }

    pub(super) fn log(&self) {
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
