//! Files of histories, and errors.

use std::fs;
use std::io::Write;

use crate::agreement::judge_both;
use campanile_history::{
    Begin, Coordinates, End, Event, History, How, Order, Recorder, Settings, judge,
};

const HEADER: &str = r#"{"event":"history","version":1,"process":"w-1","clock":"boot","unit":"us","settings":{"order":"none","lock_ttl":3000000}}"#;
const BEGIN: &str = r#"{"event":"begin","at":1,"run":1,"record":"t/0@0"}"#;

const SETTINGS: Settings = Settings {
    order: Order::None,
    lock_ttl: 3_000_000,
    max_hold: None,
    transactions: None,
    tolerance: 0,
};

fn begin(run: u64) -> Event {
    let record = Coordinates::new("t", 0, run as i64);
    Event::Begin(Begin { at: run, run, record, key: None, token: None, attempt: None })
}

#[test]
fn invalid_lines_are_errors_with_file_and_line() {
    let other_clock = HEADER.replace("w-1", "w-2").replace("boot", "wall");
    let other_settings = HEADER.replace("w-1", "w-2").replace("none", "key");
    for (lines, error) in [
        (vec![BEGIN], "a.jsonl:1: the first line must be a header"),
        (vec!["{}"], "a.jsonl:1: the first line must be a header"),
        (
            vec![HEADER, r#"{"event":"paused","at":1}"#],
            "a.jsonl:2: not an event of version 1 of the format: unknown variant `paused`",
        ),
        (
            vec![HEADER, r#"{"event":"effect","run":1}"#],
            "a.jsonl:2: not an event of version 1 of the format: missing field `at`",
        ),
        (
            vec![HEADER, r#"{"event":"effect""#],
            "not an event of version 1 of the format: EOF while parsing an object at column 17",
        ),
        (vec![HEADER, "", BEGIN], "a.jsonl:2: the line is not a JSON object"),
        (vec![HEADER, r#"["skipped",1,"t/0@0"]"#], "a.jsonl:2: the line is not a JSON object"),
        (
            vec![HEADER, BEGIN, r#"{"event":"end","at":1,"run":1,"how":{"ok":null}}"#],
            "a.jsonl:3: not an event of version 1 of the format: invalid type: map",
        ),
        (
            vec![HEADER, r#"{"event":"fault","at":1,"fault":0,"process":"w-1"}"#],
            "a.jsonl:2: not an event of version 1 of the format: invalid type: integer `0`",
        ),
        (
            vec![
                &HEADER.replace(
                    "{\"order\":\"none\",\"lock_ttl\":3000000}",
                    "[\"none\",3000000,null,0]",
                ),
            ],
            "a.jsonl:1: not a header of version 1 of the format: invalid type: sequence",
        ),
        (
            vec![HEADER, r#"{"event":"skipped","at":1,"record":"t/0"}"#],
            "\"t/0\" does not match topic/partition@offset",
        ),
        (
            vec![HEADER, r#"{"event":"commit","at":1,"partition":"t","offset":1}"#],
            "\"t\" does not match topic/partition",
        ),
        (vec![HEADER, BEGIN, BEGIN], "a.jsonl:3: run 1 has begun before"),
        (vec![HEADER, r#"{"event":"effect","at":1,"run":1}"#], "a.jsonl:2: run 1 is not running"),
        (
            vec![
                HEADER,
                BEGIN,
                r#"{"event":"end","at":1,"run":1,"how":"ok"}"#,
                r#"{"event":"effect","at":1,"run":1}"#,
            ],
            "a.jsonl:4: run 1 is not running",
        ),
        (
            vec![HEADER, BEGIN, r#"{"event":"visible","at":1,"process":"w-1","run":2}"#],
            "a.jsonl:3: run 2 has not begun in process \"w-1\"",
        ),
        (vec![HEADER, HEADER], "a.jsonl:2: there are two processes \"w-1\""),
        (
            vec![HEADER, &other_clock],
            "a.jsonl:2: the clock is \"wall\", and that of the other processes \"boot\"",
        ),
        (vec![HEADER, &other_settings], "a.jsonl:2: the settings are {\"order\":\"key\","),
        (
            vec![&HEADER.replace("\"version\":1", "\"version\":2")],
            "a.jsonl:1: version 2 of the format; this reader reads version 1",
        ),
        (
            vec![&HEADER.replace("\"version\":1", "\"version\":\"1\"")],
            "a.jsonl:1: version \"1\" of the format; this reader reads version 1",
        ),
        (vec![&HEADER.replace("\"version\":1,", "")], "a.jsonl:1: the header has no version"),
        (
            vec![&HEADER.replace("us", "ms")],
            "a.jsonl:1: not a header of version 1 of the format: unknown variant `ms`",
        ),
        (
            vec![r#"{"event":"history","version":1,"process":"w","clock":"c","unit":"us"}"#],
            "no header has settings",
        ),
        (vec![], "there is no history"),
    ] {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let found = History::parse([("a.jsonl", &*text)]).unwrap_err().to_string();
        assert!(found.contains(error), "{lines:?}: {found}");
    }
}

#[test]
fn torn_last_lines_are_ignored_at_each_byte() {
    let text = format!("{HEADER}\n{}\n", BEGIN.replace("t/0@0", "tö/0@0"));
    for end in 0..text.len() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.jsonl"), format!("{}\n", HEADER.replace("w-1", "a")))
            .unwrap();
        fs::write(folder.path().join("b.jsonl"), &text.as_bytes()[..end]).unwrap();
        let history = History::read(folder.path()).unwrap();
        let is_torn = end > 0 && text.as_bytes()[end - 1] != b'\n';
        assert_eq!(history.torn_lines(), usize::from(is_torn), "{end}");
        assert_eq!(history.events().count(), 0);
    }
}

#[test]
fn recorder_appends_what_the_reader_reads() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(folder.path(), "w-1", "boot", Some(SETTINGS)).unwrap();
    let other = Recorder::create(folder.path(), "w-2", "boot", None).unwrap();
    let end = Event::End(End { at: 9, run: 1, how: How::Dropped, lost: Some("expired".into()) });
    recorder.record(&begin(1)).unwrap();
    other.record(&begin(1)).unwrap();
    recorder.record(&end).unwrap();
    recorder.sync().unwrap();
    fs::write(folder.path().join("notes.txt"), "not a part of the history").unwrap();
    let history = History::read(folder.path()).unwrap();
    assert_eq!(*history.settings(), SETTINGS);
    let events: Vec<_> = history.events().collect();
    assert_eq!(events, [("w-1", &begin(1)), ("w-1", &end), ("w-2", &begin(1))]);
    assert_eq!(judge(&history).processes, 2);
    let again = Recorder::create(folder.path(), "w-1", "boot", None).unwrap_err();
    assert_eq!(again.kind(), std::io::ErrorKind::AlreadyExists);
}

#[test]
fn lines_of_concurrent_threads_are_whole() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(folder.path(), "w-1", "boot", Some(SETTINGS)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let recorder = &recorder;
            scope.spawn(move || {
                (0..100).for_each(|n| recorder.record(&begin(thread * 100 + n)).unwrap());
            });
        }
    });
    assert_eq!(History::read(folder.path()).unwrap().events().count(), 400);
}

#[test]
fn concatenated_files_are_a_history() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.jsonl");
    let mut file = fs::File::create(&path).unwrap();
    let second = HEADER.replace("w-1", "w-2");
    write!(file, "{HEADER}\n{BEGIN}\n{second}\n{BEGIN}\n").unwrap();
    let history = History::read(&path).unwrap();
    let processes: Vec<_> = history.events().map(|(process, _)| process).collect();
    assert_eq!(processes, ["w-1", "w-2"]);
}

#[test]
fn missing_path_is_an_error_that_names_it() {
    let error = History::read("/nowhere/history").unwrap_err();
    assert_eq!(error.to_string(), "/nowhere/history: cannot be read");
}

#[test]
fn errors_are_short_and_printable() {
    let long = "x".repeat(100_000);
    let event = format!(r#"{{"event":"\u001b[31m\u000aerror: \u202e{long}","at":1}}"#);
    let text = format!("{HEADER}\n{event}\n");
    let error = History::parse([("a\u{1b}.jsonl", &*text)]).unwrap_err().to_string();
    assert!(error.starts_with("a\\u{1b}.jsonl:2: not an event"), "{error}");
    assert!(error.contains("\\u{1b}[31m\\u{a}error: \\u{202e}xxx"), "{error}");
    assert!(error.len() < 3_000, "{} bytes", error.len());
}

/// Events with every kind of fault, in which `T` is replaced by a time, and `R` by a run.
const EXTREME: &[&str] = &[
    r#"{"event":"sent","at":T,"record":"t/0@T","key":"k"}"#,
    r#"{"event":"begin","at":T,"run":R,"record":"t/0@T","key":"k","token":T,"attempt":4294967295}"#,
    r#"{"event":"begin","at":T,"run":R,"record":"t/0@T","token":T,"attempt":0}"#,
    r#"{"event":"end","at":T,"run":R,"how":"ok"}"#,
    r#"{"event":"end","at":T,"run":R,"how":"dropped","lost":""}"#,
    r#"{"event":"effect","at":T,"run":R}"#,
    r#"{"event":"answer","at":T,"record":"t/0@T","outcome":"processed"}"#,
    r#"{"event":"answer","at":T,"record":"t/0@T","outcome":"duplicate"}"#,
    r#"{"event":"copy","at":T,"record":"t/0@T","to":"t/1@T"}"#,
    r#"{"event":"commit","at":T,"partition":"t/0","offset":T}"#,
    r#"{"event":"commit","at":T,"partition":"t/0","offset":-9223372036854775808}"#,
    r#"{"event":"reset","at":T,"partition":"t/0","offset":T}"#,
    r#"{"event":"deleted","at":T,"partition":"t/0","offset":T}"#,
    r#"{"event":"entry","at":T,"key":"k","state":"completed","token":T}"#,
    r#"{"event":"entry","at":T,"key":"k","state":"absent"}"#,
    r#"{"event":"visible","at":T,"process":"w-1","run":R}"#,
    r#"{"event":"fault","at":T,"fault":"killed","process":"w-1"}"#,
    r#"{"event":"fault","at":T,"until":T,"fault":"suspended","process":"w-1"}"#,
    r#"{"event":"fault","at":T,"until":T,"fault":"store_unavailable"}"#,
    r#"{"event":"fault","at":T,"fault":"store_lost_writes"}"#,
    r#"{"event":"fault","at":T,"fault":"clock_stepped","by":9223372036854775807}"#,
    r#"{"event":"fault","at":T,"fault":"clock_stepped","by":-9223372036854775808}"#,
    r#"{"event":"fault","at":T,"until":T,"fault":"network_cut","peer":"store"}"#,
];

#[test]
fn extreme_values_never_panic() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..2_000 {
        let lock_ttl = rng.choice(["0", "1", "9", r#"1,"transactions":"store""#]).unwrap();
        let mut text = format!("{}\n", HEADER.replace("3000000", lock_ttl));
        let (mut run, mut is_running) = (0, false);
        for _ in 0..rng.usize(..20) {
            let line = rng.choice(EXTREME).unwrap();
            // The reader refuses ends and effects without a begin.
            let (is_begin, is_end) = (line.contains("begin"), line.contains("\"end\""));
            let is_missing = line.contains("visible") && run == 0;
            if is_missing || ((is_end || line.contains("effect")) && !is_running) {
                continue;
            }
            run += u64::from(is_begin);
            is_running = is_begin || (is_running && !is_end);
            let mut line = line.replace(":R", &format!(":{run}"));
            while line.contains('T') {
                let is_offset = line.find('T') == line.find("@T").map(|at| at + 1)
                    || line.find('T') == line.find("offset\":T").map(|at| at + 8);
                let max = if is_offset { i64::MAX as u64 } else { u64::MAX };
                let time = rng.choice([0, 1, 2, max - 1, max]).unwrap();
                line = line.replacen('T', &time.to_string(), 1);
            }
            text.push_str(&line);
            text.push('\n');
        }
        println!("{}", judge_both(&[("a.jsonl", &text)]));
    }
}
