//! Commits nothing for partitions whose revoke was overtaken by another rebalance.
//!
//! When partitions are added to a topic, librdkafka rejoins the group at once, also while revoked partitions are
//! still drained. The group then gives these partitions to another member. A commit for them would be accepted,
//! because it is sent in the new generation: it would lower the offsets that the other member has committed, or
//! commit the outputs of records that the other member has processed as well.
//!
//! The check cannot cover a commit that waits for a coordinator while the group moves on, for which see
//! [`late_commit`](super::late_commit), nor one that is sent between a new generation and the callback of its
//! assignment if the revoke itself was recorded in that generation.

use rdkafka::consumer::{BaseConsumer, ConsumerContext};

use crate::native;

/// The generation of the group in which partitions were revoked, if it is known. No other member gets them before
/// the next one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RevokedIn(Option<i32>);

impl RevokedIn {
    /// Call this in the callback of the revoke.
    pub(crate) fn now<C: ConsumerContext>(consumer: &BaseConsumer<C>) -> Self {
        Self(native::generation(consumer))
    }

    /// Checks whether the group has another generation, so that another member may have the partitions.
    pub(crate) fn is_overtaken<C: ConsumerContext>(self, consumer: &BaseConsumer<C>) -> bool {
        self.0.is_some() && native::generation(consumer) != self.0
    }
}
