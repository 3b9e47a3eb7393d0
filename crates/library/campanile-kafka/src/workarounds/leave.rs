//! Leaves the group when the consumer is closed.
//!
//! librdkafka's close does not leave a group that it is still joining, and in the classic protocol none in which
//! it has no partitions: the group would wait for this member until its session times out.
//!
//! It may also not answer the callback of an assignment that is handled after the close has begun. The callback
//! would wait for ever: <https://github.com/confluentinc/librdkafka/issues/4884>. So the consumer unsubscribes
//! before it is closed, after which there is no such callback.

use std::time::Duration;

use campanile_core::Clock;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};

use crate::native;
use crate::native::fetch_queues::FetchQueues;

/// How long closing the consumer waits for a join that is in progress, and then for leaving the group.
/// Unreachable brokers do not delay the end of serving for longer.
const MEMBERSHIP_TIMEOUT: Duration = Duration::from_secs(2);

/// Leaves the group step by step.
pub(crate) struct Leave {
    clock: Clock,
    step: Step,
    unsubscribes: bool,
}

/// The steps of leaving the group, with their deadlines.
enum Step {
    Joining(Duration),
    Leaving(Duration),
    Left,
}

impl Leave {
    /// Closing waits for a join in progress only if the consumer is `subscribed`.
    pub(crate) fn new(subscribed: bool, unsubscribes: bool) -> Self {
        let clock = Clock::boot();
        let joining = if subscribed { MEMBERSHIP_TIMEOUT } else { Duration::ZERO };
        let step = Step::Joining(clock.now() + joining);
        Self { clock, step, unsubscribes }
    }

    /// Takes a step if one is due. Checks whether the consumer has left its group, or has stopped
    /// waiting for that.
    pub(crate) fn poll<C: ConsumerContext>(
        &mut self,
        consumer: &BaseConsumer<C>,
        fetch_queues: &FetchQueues,
    ) -> bool {
        let now = self.clock.now();
        match self.step {
            Step::Joining(deadline) if native::is_member(consumer) || now >= deadline => {
                fetch_queues.close();
                self.step = if self.unsubscribes {
                    consumer.unsubscribe();
                    Step::Leaving(now + MEMBERSHIP_TIMEOUT)
                } else {
                    Step::Left
                };
            }
            Step::Leaving(deadline) if !native::has_member_id(consumer) || now >= deadline => {
                self.step = Step::Left;
            }
            _ => {}
        }
        matches!(self.step, Step::Left)
    }
}

/// Prepares the consumer for being dropped: handles what has arrived. A static member would leave its group by an
/// unsubscribe, so that an assignment may still arrive.
pub(crate) fn close<C: ConsumerContext>(consumer: &BaseConsumer<C>, unsubscribes: bool) {
    if unsubscribes {
        consumer.unsubscribe();
    }
    while native::has_events(consumer) {
        drop(consumer.poll(Duration::ZERO));
    }
}
