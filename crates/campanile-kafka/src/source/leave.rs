//! Leaving the group when the consumer is closed.

use std::time::Duration;

use campanile_core::Clock;
use rdkafka::consumer::{BaseConsumer, Consumer};

use super::context::Context;
use super::start;
use crate::native;
use crate::native::fetch_queues::FetchQueues;

/// How long closing the consumer waits for a join that is in progress, and then for leaving the group.
/// Unreachable brokers do not delay the end of serving for longer.
const MEMBERSHIP_TIMEOUT: Duration = Duration::from_secs(2);

/// Leaves the group step by step.
pub(super) struct Leave {
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
    pub(super) fn new(consumer: &BaseConsumer<Context>, unsubscribes: bool) -> Self {
        let clock = Clock::boot();
        // librdkafka does not leave a group that it is still joining. The group would then wait for this
        // member until its session times out.
        let joining = match start::is_subscribed(consumer) {
            true => MEMBERSHIP_TIMEOUT,
            false => Duration::ZERO,
        };
        let step = Step::Joining(clock.now() + joining);
        Self { clock, step, unsubscribes }
    }

    /// Takes a step if one is due. Checks whether the consumer has left its group, or has stopped
    /// waiting for that.
    pub(super) fn poll(
        &mut self,
        consumer: &BaseConsumer<Context>,
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
