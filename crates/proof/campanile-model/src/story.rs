//! Tells a history in English.

use std::ptr;
use std::time::Duration;

use campanile_core::Reply;

use crate::action::Action;
use crate::compact::{Command, Slot, TTL, Verb};
use crate::config::Config;
use crate::explore::Violation;
use crate::raw::{COMPLETED, ERROR, NO_TAIL, PROCESSING, RETRYING};
use crate::rules::{STEP_RULES, StepFn};
use crate::stepper::Stepper;
use crate::world::World;

const NAMES: [char; 3] = ['A', 'B', 'C'];

/// Tells how a rule was broken: one line for each thing that happened, with the time of the store's
/// clock.
pub fn tell(config: &Config, run: StepFn, violation: &Violation) -> String {
    let mut stepper = config.stepper(run, true);
    let mut world = config.roots().swap_remove(violation.root);
    let mut names = NAMES;
    let mut story = String::new();
    if world.entry != Slot::EMPTY {
        let Slot { attempt, interrupts, give_ups, .. } = world.entry;
        story += &format!(
            "The entry was released before, with {attempt} attempts, {interrupts} uncounted \
             interruptions and {give_ups} give-ups.\n"
        );
    }
    permute(&mut world, &mut names);
    for &action in &violation.actions {
        let before = world;
        let applied = world.apply(action, &mut stepper);
        let answered = applied.answered.map(|(command, reply)| {
            format!(
                "{} arrives: {}",
                describe_command(command),
                describe_reply(&reply, &world, &stepper)
            )
        });
        let line = describe(action, &before, &names, answered.as_deref().unwrap_or_default());
        let expires = before.entry.state == PROCESSING
            && before.now() < before.entry.at
            && before.entry == world.entry
            && world.now() >= world.entry.at;
        let end = if expires { " The lock expires." } else { "" };
        story += &format!("{}  {line}{end}\n", clock(before.now()));
        let is_step_rule = STEP_RULES.iter().any(|rule| ptr::eq(&rule.rule, violation.rule));
        if applied.broken.is_some() && is_step_rule {
            let (before, after) = (describe_entry(before.entry), describe_entry(world.entry));
            story += &format!("       The entry was {before}.\n       It is now {after}.\n");
        }
        permute(&mut world, &mut names);
    }
    let rule = violation.rule;
    story += &format!("Broken: {} ({}).", rule.name, rule.section);
    story
}

/// Clients keep their names when their positions change.
fn permute(world: &mut World, names: &mut [char; 3]) {
    let order = world.canonicalize();
    *names = order.map(|position| names[usize::from(position)]);
}

/// The store's clock: the story begins at ten, and a tick is half an hour.
fn clock(tick: i16) -> String {
    let half_hours = tick + 20;
    format!("{:02}:{:02}", half_hours.div_euclid(2).rem_euclid(24), half_hours.rem_euclid(2) * 30)
}

fn describe(action: Action, before: &World, names: &[char; 3], answered: &str) -> String {
    let client = |index: u8| names[usize::from(index)];
    match action {
        Action::Acquire(index, payload) => {
            let payload = describe_payload(payload);
            format!("{} gets the record with {payload}, and sends an acquire.", client(index))
        }
        Action::Arrive(index) => format!("{}'s {answered}.", client(index)),
        Action::Unanswered(index) => {
            format!("{}'s {answered}, but the answer does not arrive.", client(index))
        }
        Action::Copy(index) => {
            let verb = describe_command(before.clients[usize::from(index)].pending);
            format!("The network keeps a copy of {}'s {verb}.", client(index))
        }
        Action::Late => format!("The late copy of the {answered}."),
        Action::Cancel(index) => {
            format!("{} does not wait any longer, and cancels.", client(index))
        }
        Action::Abandon(index) => format!("{} does not wait for the cancel either.", client(index)),
        Action::Effect(index) => format!("{}'s handler has its effect.", client(index)),
        Action::Publish(index) => format!("{} publishes the dead letter.", client(index)),
        Action::PublishOwn(index) => {
            format!(
                "{}'s handler has failed for good, and {0} publishes the dead letter.",
                client(index)
            )
        }
        Action::RecordStep(index, verb) => {
            let step = match verb {
                Verb::RecordFirst => "first step",
                Verb::RecordSecond => "second step",
                _ => "second step, with a large result",
            };
            format!("{}'s handler has run its {step}, and {0} sends the result.", client(index))
        }
        Action::Renew(index) => format!("{} sends a renewal.", client(index)),
        Action::Settle(index, verb) => {
            let why = match verb {
                Verb::Complete => "succeeds",
                Verb::Fail => "fails",
                Verb::FailLast => "fails permanently",
                Verb::FailGiveUp => "cannot publish the dead letter",
                Verb::GiveUp => "gives the key up",
                Verb::ReleaseRan => "is interrupted while the handler runs",
                _ => "is interrupted before it begins",
            };
            format!("{} {why}.", client(index))
        }
        Action::Tick => "Half an hour passes.".to_owned(),
        Action::Crash(index) => {
            format!("{} crashes, and restarts without its state.", client(index))
        }
        Action::Redrive(_) | Action::Take => format!("An operator's {answered}."),
        Action::RedriveLate(_) => "An operator sends a redrive, which is delayed.".to_owned(),
        Action::TakeLate => {
            "An operator fails the current attempt; the command is delayed.".to_owned()
        }
        Action::Jump(ticks) => {
            let (way, minutes) =
                (if ticks > 0 { "forward" } else { "back" }, 30 * i32::from(ticks).abs());
            format!("The store's clock is set {way} by {minutes} minutes.")
        }
        Action::Expire => "25 hours pass, and the entry's retention ends.".to_owned(),
        Action::Evict => "Half an hour passes. The store loses the entry.".to_owned(),
        Action::Lag => "The replica stops receiving.".to_owned(),
        Action::Failover => "Half an hour passes. The store fails over to the replica.".to_owned(),
    }
}

fn describe_entry(entry: Slot) -> String {
    let Slot { attempt, interrupts, give_ups, at, .. } = entry;
    let [giving_up, permanent_failure, released] = entry.flags;
    let flag = |is_set, name| if is_set { name } else { "" };
    let state = match entry.state {
        0 => return "absent".to_owned(),
        PROCESSING => "PROCESSING until",
        RETRYING => "RETRYING from",
        COMPLETED => "COMPLETED at",
        _ => "FAILED at",
    };
    let tail = match entry.tail {
        (NO_TAIL, _) => "neither error nor reply".to_owned(),
        (ERROR, payload) => format!("the error of {}", describe_payload(payload)),
        (_, payload) => format!("the reply to {}", describe_payload(payload)),
    };
    let step = |step, result| match result {
        0 => String::new(),
        attempt => format!(", with the {step} step's result of attempt {attempt}"),
    };
    format!(
        "{state} {} with token {}, nonce {}, {}, {attempt} attempts, {interrupts} uncounted \
         interruptions, {give_ups} give-ups and {tail}{}{}{}{}{}",
        clock(at),
        entry.token.number(),
        entry.owner,
        describe_payload(entry.fingerprint),
        step("first", entry.steps[0]),
        step("second", entry.steps[1]),
        flag(giving_up, ", giving up"),
        flag(permanent_failure, ", failed permanently"),
        flag(released, ", released"),
    )
}

fn describe_payload(payload: u8) -> String {
    match payload {
        0 => "a payload without a fingerprint".to_owned(),
        payload => format!("payload {payload}"),
    }
}

fn describe_command(command: Command) -> String {
    let token = command.token.number();
    match command.verb {
        Verb::None => "nothing".to_owned(),
        Verb::Acquire => "acquire".to_owned(),
        Verb::Renew => format!("renewal of token {token}"),
        Verb::RecordFirst => format!("result of the first step under token {token}"),
        Verb::RecordSecond => format!("result of the second step under token {token}"),
        Verb::RecordLarge => format!("large result of the second step under token {token}"),
        Verb::Complete => format!("completion of token {token}"),
        Verb::Fail => format!("failure of token {token}"),
        Verb::FailLast => format!("permanent failure of token {token}"),
        Verb::FailGiveUp => format!("failure of the give-up lock with token {token}"),
        Verb::ReleaseRan => format!("release of token {token}, whose handler had begun"),
        Verb::Release => format!("release of token {token}"),
        Verb::Cancel => "cancel".to_owned(),
        Verb::GiveUp => format!("give-up of token {token}"),
        Verb::Redrive => format!("redrive of token {token}"),
        Verb::RedriveForced => format!("forced redrive of token {token}"),
    }
}

fn describe_reply(reply: &Reply, world: &World, stepper: &Stepper) -> String {
    let number =
        |token: campanile_core::FencingToken| stepper.calendar.pack_token(token.get()).number();
    let wait = |remaining: &Duration| format!("for {} more minutes", remaining.as_secs() / 60);
    match reply {
        Reply::Acquired { token, attempt, .. } => {
            let end = clock(world.now() + TTL);
            format!("granted with token {}, attempt {attempt}, until {end}", number(*token))
        }
        Reply::Exhausted { token, attempt, give_ups, .. } => format!(
            "a give-up lock with token {}, {attempt} attempts, give-up {give_ups}",
            number(*token)
        ),
        Reply::Locked { remaining } => format!("Locked {}", wait(remaining)),
        Reply::BackingOff { remaining, .. } => format!("BackingOff {}", wait(remaining)),
        Reply::Duplicate { .. } => "Duplicate".to_owned(),
        Reply::AlreadyGivenUp { .. } => "AlreadyGivenUp".to_owned(),
        other => format!("{other:?}"),
    }
}
