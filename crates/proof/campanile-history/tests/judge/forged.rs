//! Each history in `tests/histories` has what the judge must find in its header.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use campanile_history::{Cause, Rule, Verdict};
use serde::Deserialize;

use crate::agreement::judge_both;

/// The additional field of the headers of these histories.
#[derive(Deserialize)]
struct ForgedHeader {
    expect: Expected,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Expected {
    violations: Vec<(Rule, String)>,
    reruns: Vec<(String, Cause)>,
}

fn forged() -> Vec<(String, Expected, Verdict)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories");
    let mut forged = Vec::new();
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let mut expect =
            serde_json::from_str::<ForgedHeader>(text.lines().next().unwrap()).unwrap().expect;
        expect.violations.sort();
        let file = path.file_name().unwrap().to_str().unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        forged.push((name, expect, judge_both(&[(file, &*text)])));
    }
    forged
}

#[test]
fn forged_histories_get_the_expected_verdict() {
    let mut wrong = Vec::new();
    for (name, expect, verdict) in forged() {
        let violations = verdict.violations.iter();
        let mut found = Expected {
            violations: violations.map(|v| (v.rule, v.subject.clone())).collect(),
            reruns: verdict.reruns.iter().map(|r| (r.key.clone(), r.cause)).collect(),
        };
        found.violations.sort();
        let named = name.starts_with("sound") == verdict.is_sound();
        if found != expect || !named {
            wrong.push(format!("{name}: expected {expect:?}, got {found:?}\n{verdict}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn forged_histories_cover_each_rule_and_cause() {
    let forged = forged();
    let rules: BTreeSet<_> =
        forged.iter().flat_map(|(_, expect, _)| expect.violations.iter().map(|v| v.0)).collect();
    assert!(Rule::ALL.iter().copied().eq(rules));
    let sound = forged.iter().filter(|(.., verdict)| verdict.is_sound());
    let causes: BTreeSet<_> =
        sound.flat_map(|(_, expect, _)| expect.reruns.iter().map(|r| r.1)).collect();
    assert!(Cause::ALL.iter().copied().eq(causes));
    let rejected = forged.iter().filter(|(.., verdict)| !verdict.is_sound()).count();
    assert!(rejected >= 20, "{rejected} forged histories are rejected");
}

#[test]
fn verdict_shows_the_events_of_each_violation() {
    let forged = forged();
    let of = |name: &str| forged.iter().find(|forged| forged.0 == name).unwrap().2.to_string();
    let story = of("unexplained-after-processed");
    let expected = "\
unexplained: p-1 ran again, although it was completed
  2.000000 s  worker-1: run 1 of payments/0@0 begins (attempt 1, token 7)  (unexplained-after-processed.jsonl:5)
  2.050000 s  worker-1: run 1 has had its effect  (unexplained-after-processed.jsonl:6)
";
    assert!(story.contains(expected), "{story}");
    assert!(
        of("sound-killed-after-effect").contains(
            "1 run again: The process was killed after the effect, before it was recorded."
        )
    );
    // The fault that would be an excuse, and the answer with an error, are a part of the story.
    let story = of("unexplained-killed-long-before-begin");
    let answer = "payments/0@0 is answered with an error: the store refused the completion";
    assert!(story.contains(answer), "{story}");
    let story = of("attempt-not-counted");
    let expected = "\
attempt_not_counted: p-1 began attempt 1 again after its process was killed, which counts
  2.000000 s  worker-1: run 1 of payments/0@0 begins (attempt 1, token 7)  (attempt-not-counted.jsonl:5)
  2.500000 s  test: worker-1 is killed  (attempt-not-counted.jsonl:3)
";
    assert!(story.contains(expected), "{story}");
}
