//! The worlds in which the promises are tried have everything in them that could break one.

use std::collections::BTreeMap;

use campanile_core::{Reply, State};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::rules::Step;
use crate::world::{Event, Faults, History, histories};

/// With values that are the same in every run: how often each answer to each operation was given.
#[test]
fn histories_reach_every_answer_that_a_client_can_get() {
    let mut runner = TestRunner::deterministic();
    let strategy = histories(Faults::CLOCK);
    let mut seen = BTreeMap::new();
    for _ in 0..400 {
        let history = strategy.new_tree(&mut runner).expect("a history").current();
        note(&history, &mut seen);
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
        "acquire Parked",
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
        "reject Rejected",
        "reject Lost",
        "redrive Reopened",
        "redrive Settled(Processing)",
        "redrive Settled(Retrying)",
        "redrive Settled(Completed)",
        "redrive Lost",
        "effect",
        "letter",
        "a late completion",
        "an adopted completion",
        "an attempt handed back",
        "a clamp",
        "a second burial",
        "a takeover",
    ];
    let missing: Vec<_> = expected.iter().filter(|word| !seen.contains_key(**word)).collect();
    assert!(missing.is_empty(), "never seen: {missing:?}");
}

fn note(history: &History, seen: &mut BTreeMap<String, u32>) {
    let mut count = |word: &str| *seen.entry(word.to_owned()).or_default() += 1;
    for (_, event) in history.events() {
        match event {
            Event::Effect { .. } => count("effect"),
            Event::Letter { .. } => count("letter"),
            Event::Stepped { step, .. } => {
                count(&format!("{} {}", step.operation.name(), word(&step.reply)));
                for (name, is_so) in special(step) {
                    if is_so {
                        count(name);
                    }
                }
            }
            _ => {}
        }
    }
}

fn word(reply: &Reply) -> String {
    let debug = format!("{reply:?}");
    debug.split(" {").next().unwrap_or_default().to_owned()
}

fn special(step: &Step) -> [(&'static str, bool); 6] {
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
            "an attempt handed back",
            step.reply == Reply::Released && attempts(&step.after) < attempts(&step.before),
        ),
        ("a clamp", waits && !step.is_idle()),
        ("a second burial", matches!(step.reply, Reply::Exhausted { burials: 2.., .. })),
        ("a takeover", was_held && step.grant().is_some()),
    ]
}
