//! Offsets that are committed in transactions, with what their records have given out.

use std::sync::Mutex;

use campanile_core::Clock;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerGroupMetadata};

use super::assignment::Held;
use super::context::IntakeContext;
use super::control::{Control, Stage};
use super::{Event, Settings, native};
use crate::error::ConsumerError;
use crate::transaction::Transactor;

/// From this level of the budget on, what is finished is committed without waiting.
const HALF: f64 = 0.5;

/// Takes the transactional id, where there is to be one, from whoever has it.
pub(super) fn begin(
    consumer: &BaseConsumer<IntakeContext>,
    settings: &Settings,
    control: &Control,
) -> Result<(), ConsumerError> {
    let Some(terms) = &settings.transactions else {
        return Ok(());
    };
    let clock = Clock::boot();
    let start = clock.now();
    let goes_on = || {
        settings.vitals.round();
        if clock.now() - start < settings.start_timeout {
            return Ok(control.stage() == Stage::Reading);
        }
        let what = format!(
            "the transactions' coordinator did not answer within {:?}",
            settings.start_timeout
        );
        Err(ConsumerError::kafka(what, None))
    };
    if let Some(transactor) = Transactor::start(terms, goes_on)? {
        let _ = consumer.context().transactor.set(Mutex::new(transactor));
    }
    Ok(())
}

/// Commits what is finished, if it is time for that. Whether commits are made so.
pub(super) fn go_on(consumer: &BaseConsumer<IntakeContext>, control: &Control) -> bool {
    let context = consumer.context();
    let Some(mut transactor) = context.transactor() else {
        return false;
    };
    let slots = || context.assignment().iter_mut().map(|held| held.slot.clone()).collect();
    let polled = transactor.poll(control.level() >= HALF, &slots, &|| group(consumer));
    tell(context, polled);
    if control.take_room() {
        context.tell(Event::Room);
    }
    true
}

/// Commits what of these is finished, and waits for that. Whether commits are made so.
pub(super) fn end(
    context: &IntakeContext,
    consumer: &BaseConsumer<IntakeContext>,
    held: &[&mut Held],
) -> bool {
    let Some(mut transactor) = context.transactor() else {
        return false;
    };
    let slots = || held.iter().map(|held| held.slot.clone()).collect();
    let finished = transactor.finish(&slots, &|| group(consumer));
    tell(context, finished);
    true
}

fn tell(context: &IntakeContext, result: Result<(), ConsumerError>) {
    if let Err(error) = result {
        context.tell(Event::Failed(error));
    }
}

/// The generation that the brokers hold a commit against. Without one they would take it from anybody.
fn group(consumer: &BaseConsumer<IntakeContext>) -> Option<ConsumerGroupMetadata> {
    let group = consumer.group_metadata()?;
    // Asked afterwards: it becomes a member only while this thread polls.
    native::is_member(consumer).then_some(group)
}
