//! What the verdict says besides rules and causes.

use std::fs;
use std::process::Command;

use campanile_history::{History, Verdict, judge};

const HEADER: &str = r#"{"event":"history","version":1,"process":"w-1","clock":"boot","unit":"us","settings":{"order":"none","lock_ttl":3000000}}"#;

fn verdict(lines: &[&str]) -> Verdict {
    let text: String = [HEADER].iter().chain(lines).map(|line| format!("{line}\n")).collect();
    judge(&History::parse([("a.jsonl", &*text)]).unwrap())
}

#[test]
fn notes_say_what_cannot_be_found() {
    let missing = [
        "no record is `sent`, so none can be found lost",
        "there is no `begin`",
        "there is no `commit` to check",
        "there is no `entry` to check",
    ];
    assert_eq!(verdict(&[]).notes, missing);
    let lines = [
        r#"{"event":"sent","at":1,"record":"t/0@0","key":"k"}"#,
        r#"{"event":"begin","at":2,"run":1,"record":"t/0@0","key":"k","token":1,"attempt":1}"#,
        r#"{"event":"end","at":3,"run":1,"how":"ok"}"#,
        r#"{"event":"answer","at":4,"record":"t/0@0","outcome":"processed"}"#,
        r#"{"event":"commit","at":5,"partition":"t/0","offset":1}"#,
        r#"{"event":"entry","at":6,"key":"k","state":"completed","token":1,"attempt":1}"#,
    ];
    let sound = verdict(&lines);
    assert_eq!(sound.notes, [""; 0]);
    assert_eq!(sound.to_string(), "6 events of 1 process, 1 record, 1 key, 1 run: sound");
    for (field, note) in [
        ("token", "no run has a `token`, so each may run again and overlap others"),
        ("attempt", "runs with a `token` and no `attempt`, which are not checked for it: 1"),
    ] {
        let misspelled = lines.map(|line| line.replace(field, "tokn"));
        let verdict = verdict(&misspelled.each_ref().map(|line| &**line)[..2]);
        assert_eq!(verdict.notes, [note, missing[2], missing[3]]);
        assert!(verdict.to_string().contains(&format!("\nnote: {note}\n")), "{verdict}");
    }
    let header = HEADER.replace("lock_ttl", "transactions\":\"store\",\"lock_ttl");
    let verdict = judge(&History::parse([("a.jsonl", &*format!("{header}\n"))]).unwrap());
    let visible = "there is no `visible`, so each run counts as rolled back";
    assert_eq!(verdict.notes, [missing[0], missing[1], visible, missing[2], missing[3]]);
}

#[test]
fn notes_say_what_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("a.jsonl", &format!("{HEADER}\n{{\"event\":\"reset\""));
    let fault = r#"{"event":"fault","at":1,"fault":"killed","process":"W-1"}"#;
    let header = HEADER.replace("w-1", "w-2");
    write("b.jsonl", &format!("{header}\n{fault}\n{}\n{fault}", fault.replace("W-1", "w-3")));
    write("c.jsonl.gz", "");
    let pipe = folder.path().join("pipe.jsonl");
    assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    let verdict = judge(&History::read(folder.path()).unwrap());
    let expected = [
        "lines ignored, because they have no end: a.jsonl:2, b.jsonl:4",
        "processes that have faults and no header: W-1, w-3",
        "files ignored, because their names do not end in .jsonl, or they are no files: 2",
    ];
    assert_eq!(verdict.notes[..3], expected);
}

#[test]
fn notes_name_what_contradicts_the_format() {
    let restarted = [
        r#"{"event":"fault","at":1,"until":2,"fault":"killed","process":"w-1"}"#,
        r#"{"event":"begin","at":3,"run":1,"record":"t/0@0"}"#,
        r#"{"event":"commit","at":4,"partition":"t/0","offset":1}"#,
    ];
    let note = "processes that ran again under their name after they were killed: w-1";
    assert!(verdict(&restarted).notes.contains(&note.to_owned()));
    let within = [restarted[0], &restarted[1].replace("\"at\":3", "\"at\":2")];
    assert!(!verdict(&within).notes.contains(&note.to_owned()));
    let note = "partitions whose commits have no order, because several processes wrote them: t/0";
    assert!(!verdict(&restarted).notes.contains(&note.to_owned()));
    let other = HEADER.replace("w-1", "w-2");
    let several = [restarted[2], &other, &restarted[2].replace(":1", ":2")];
    assert!(verdict(&several).notes.contains(&note.to_owned()));
}

#[test]
fn violation_shows_its_events_as_text_and_in_json() {
    let sent = r#"{"event":"sent","at":1000000,"record":"t/0@0","key":"p-1"}"#;
    let verdict = verdict(&[sent]);
    let story = "lost: t/0@0 was not finished by the end of the history\n  \
                 1.000000 s  w-1: t/0@0 is sent, with key p-1  (a.jsonl:2)";
    assert!(verdict.to_string().contains(story), "{verdict}");
    let json = serde_json::to_value(&verdict).unwrap();
    let violation = &json["violations"][0];
    assert_eq!((&violation["rule"], &violation["subject"]), (&"lost".into(), &"t/0@0".into()));
    let event = &violation["events"][0];
    assert_eq!((&event["file"], &event["line"]), (&"a.jsonl".into(), &2.into()));
}

#[test]
fn first_violations_of_each_rule_are_printed() {
    let sent = |offset: u64| {
        format!(r#"{{"event":"sent","at":{offset},"record":"t/0@{offset}","key":"k{offset}"}}"#)
    };
    let lines: Vec<_> = (1..=12).map(sent).collect();
    let lines: Vec<_> = lines.iter().map(|line| &**line).collect();
    let verdict = verdict(&lines);
    let text = verdict.to_string();
    assert!(text.starts_with("12 events of 1 process, 12 records, 12 keys, 0 runs: 12 violations"));
    let stories = text.lines().filter(|line| line.starts_with("lost: "));
    let expected = (1..=10)
        .map(|offset| format!("lost: t/0@{offset} was not finished by the end of the history"));
    let expected = expected.chain(["lost: 2 more".to_owned()]);
    assert!(stories.eq(expected), "{text}");
}

#[test]
fn first_and_last_events_of_a_violation_are_printed() {
    let begin = |run: u64| {
        let end = format!(r#"{{"event":"end","at":{run},"run":{run},"how":"error"}}"#);
        let begin = format!(r#"{{"event":"begin","at":{run},"run":{run},"record":"t/0@0"}}"#);
        format!("{begin}\n{end}")
    };
    let sent = r#"{"event":"sent","at":0,"record":"t/0@0","key":"k"}"#.to_owned();
    let lines: Vec<_> = [sent].into_iter().chain((1..=12).map(begin)).collect();
    let lines: Vec<_> = lines.iter().map(|line| &**line).collect();
    let text = verdict(&lines).to_string();
    let story: Vec<_> = text.lines().skip_while(|line| !line.starts_with("lost: ")).collect();
    assert_eq!((story.len(), story[11]), (1 + 10 + 1 + 10, "  5 more events"));
    assert!(story[21].contains("run 12 ends with an error"), "{text}");
}
