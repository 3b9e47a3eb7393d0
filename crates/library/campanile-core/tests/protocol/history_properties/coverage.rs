//! The simulated histories contain every situation that could break a property.

use std::collections::BTreeMap;

use campanile_core::{Reply, State};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::simulation::{Event, Faults, History, histories};
use crate::step_properties::Step;

/// Counts each reply to each operation, over values that are the same in every run.
#[test]
fn histories_cover_every_reply_to_a_client() {
    let mut runner = TestRunner::deterministic();
    let strategy = histories(Faults::CLOCK);
    let mut seen = BTreeMap::new();
    for _ in 0..400 {
        let history = strategy.new_tree(&mut runner).expect("a history").current();
        count_replies(&history, &mut seen);
    }
    for (word, times) in &seen {
        println!("{times:6} {word}");
    }
    let expected = [
        "acquire Acquired",
        "acquire Exhausted",
        "acquire Locked",
        "acquire BackingOff",
        "acquire Duplicate",
        "acquire AlreadyGivenUp",
        "acquire Mismatch",
        "acquire Settled(Retrying)",
        "renew Renewed",
        "renew Lost",
        "renew Settled(Retrying)",
        "renew Settled(Completed)",
        "renew Settled(Failed)",
        "complete Completed",
        "complete Lost",
        "fail Retrying",
        "fail Lost",
        "release Released",
        "release Lost",
        "cancel Released",
        "cancel Lost",
        "give_up GivenUp",
        "give_up Lost",
        "redrive Reopened",
        "redrive Settled(Processing)",
        "redrive Settled(Retrying)",
        "redrive Settled(Completed)",
        "redrive Lost",
        "effect",
        "dead letter",
        "a late completion",
        "an adopted completion",
        "an uncounted attempt",
        "a clamp",
        "a second giving_up",
        "a takeover",
    ];
    let missing: Vec<_> = expected.iter().filter(|word| !seen.contains_key(**word)).collect();
    assert!(missing.is_empty(), "not covered: {missing:?}");
}

fn count_replies(history: &History, seen: &mut BTreeMap<String, u32>) {
    let mut count = |word: &str| *seen.entry(word.to_owned()).or_default() += 1;
    for (_, event) in history.events() {
        match event {
            Event::Effect { .. } => count("effect"),
            Event::DeadLetter { .. } => count("dead letter"),
            Event::Stepped { step, .. } => {
                count(&format!("{} {}", step.operation.name(), reply_name(&step.reply)));
                for (name, applies) in special_cases(step) {
                    if applies {
                        count(name);
                    }
                }
            }
            _ => {}
        }
    }
}

fn reply_name(reply: &Reply) -> String {
    let debug = format!("{reply:?}");
    debug.split(" {").next().unwrap_or_default().to_owned()
}

fn special_cases(step: &Step) -> [(&'static str, bool); 6] {
    let before = step.before.as_ref();
    let completes = step.reply == Reply::Completed;
    let was_held = before.is_some_and(|entry| entry.state() == State::Processing);
    let waits = matches!(step.reply, Reply::Locked { .. } | Reply::BackingOff { .. });
    let is_late = before.is_some_and(|entry| entry.at() <= crate::draft::time(step.now));
    let attempts = |entry: &Option<campanile_core::Entry>| entry.as_ref().map(|e| e.attempt());
    [
        ("a late completion", completes && was_held && is_late),
        ("an adopted completion", completes && before.is_none()),
        (
            "an uncounted attempt",
            step.reply == Reply::Released && attempts(&step.after) < attempts(&step.before),
        ),
        ("a clamp", waits && !step.is_unchanged()),
        ("a second giving_up", matches!(step.reply, Reply::Exhausted { give_ups: 2.., .. })),
        ("a takeover", was_held && step.new_grant().is_some()),
    ]
}
