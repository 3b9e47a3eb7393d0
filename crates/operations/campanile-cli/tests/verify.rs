//! The verb `verify`: its output and its exit codes.
#![expect(clippy::unwrap_used, reason = "test helpers")]

use std::process::Command;
use std::{fs, io};

use tempfile::TempDir;

const HEADER: &str = r#"{"event":"history","version":1,"process":"w-1","clock":"boot","unit":"us","settings":{"order":"none","lock_ttl":3000000}}"#;
const SENT: &str = r#"{"event":"sent","at":1000000,"record":"payments/0@0","key":"p-1"}"#;
const ANSWERS: &str = r#"{"event":"begin","at":2000000,"run":1,"record":"payments/0@0","key":"p-1","token":7,"attempt":1}
{"event":"end","at":2000001,"run":1,"how":"ok"}
{"event":"answer","at":2000002,"record":"payments/0@0","outcome":"processed"}"#;

fn history(text: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("w-1.jsonl"), text).unwrap();
    folder
}

fn command(history: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.arg("verify").arg(history.path());
    command
}

/// Verifies a folder with this file. Returns the exit code, and the output and errors.
fn verify(text: &str, options: &[&str]) -> (Option<i32>, String, String) {
    let folder = history(text);
    let output = command(&folder).args(options).output().unwrap();
    let (stdout, stderr) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
    (output.status.code(), stdout.unwrap(), stderr.unwrap())
}

#[test]
fn sound_history_exits_with_0() {
    let (code, stdout, stderr) = verify(&format!("{HEADER}\n{SENT}\n{ANSWERS}\n{{"), &[]);
    assert_eq!((code, &*stderr), (Some(0), ""));
    let expected = "4 events of 1 process, 1 record, 1 key, 1 run: sound\n\
                    note: lines ignored, because they have no end: w-1.jsonl:6\n";
    assert!(stdout.starts_with(expected), "{stdout}");
}

#[test]
fn violations_exit_with_1_and_show_their_events() {
    let text = format!("{HEADER}\n{SENT}\n");
    let (code, stdout, _) = verify(&text, &[]);
    assert_eq!(code, Some(1));
    let story = "lost: payments/0@0 was not finished by the end of the history\n  \
                 1.000000 s  w-1: payments/0@0 is sent, with key p-1  (w-1.jsonl:2)\n";
    assert!(stdout.contains(story), "{stdout}");
    let (code, stdout, _) = verify(&text, &["--json"]);
    assert_eq!(code, Some(1));
    let verdict: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let violation = &verdict["violations"][0];
    assert_eq!(
        (&violation["rule"], &violation["subject"]),
        (&"lost".into(), &"payments/0@0".into())
    );
    assert_eq!(
        (&violation["events"][0]["file"], &violation["events"][0]["line"]),
        (&"w-1.jsonl".into(), &2.into())
    );
}

#[test]
fn exit_code_is_that_of_the_verdict_if_nobody_reads_it() {
    let sent = (0..5_000).map(|number| SENT.replace("/0@0", &format!("/0@{number}")));
    for (text, code) in [
        (format!("{HEADER}\n{SENT}\n{ANSWERS}\n"), 0),
        (format!("{HEADER}\n{}\n", sent.collect::<Vec<_>>().join("\n")), 1),
    ] {
        let (_, unread) = io::pipe().unwrap();
        let status = command(&history(&text)).stdout(unread).status().unwrap();
        assert_eq!(status.code(), Some(code));
    }
}

#[test]
fn unreadable_history_exits_with_2_and_names_the_line() {
    for (text, error) in [
        (
            format!("{HEADER}\n{{\"event\":\"paused\",\"at\":1}}\n"),
            "w-1.jsonl:2: not an event of version 1 of the format: unknown variant `paused`",
        ),
        (
            HEADER.replace("\"version\":1", "\"version\":9") + "\n",
            "w-1.jsonl:1: version 9 of the format",
        ),
        (String::new(), "there is no history"),
    ] {
        let (code, stdout, stderr) = verify(&text, &["--json"]);
        assert_eq!((code, &*stdout), (Some(2), ""), "{stderr}");
        assert!(stderr.contains(error), "{stderr}");
    }
}
