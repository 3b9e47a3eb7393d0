//! docs/history-format.md.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use campanile_history::{Cause, History, Rule};

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/history-format.md");
    fs::read_to_string(path).unwrap()
}

/// The lines of all examples in JSON, which are one history together.
fn examples(document: &str) -> String {
    document.split("```json\n").skip(1).map(|part| part.split("```").next().unwrap()).collect()
}

#[test]
fn documented_examples_are_a_history() {
    let examples = examples(&document());
    let history = History::parse([("history-format.md", &*examples)]).unwrap();
    assert_eq!(history.events().count(), examples.lines().count() - 1);
    // Fields that are not documented would be read and not written, or the reverse.
    for ((_, event), line) in history.events().zip(examples.lines().skip(1)) {
        let read: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(serde_json::to_value(event).unwrap(), read);
    }
}

#[test]
fn examples_show_each_event_and_each_fault() {
    let examples = examples(&document());
    let values = |field: &str| -> BTreeSet<String> {
        let lines = examples.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
        lines.filter_map(|line| Some(line.get(field)?.as_str()?.to_owned())).collect()
    };
    // The error for an unknown value lists the known ones.
    let known = |line: &str| {
        let header = examples.lines().next().unwrap();
        let text = format!("{header}\n{line}\n");
        let error = History::parse([("h", &*text)]).unwrap_err();
        let error = error.to_string();
        let list = error.split_once("expected one of ").unwrap().1.to_owned();
        let names = list.split('`').skip(1).step_by(2).map(str::to_owned);
        names.collect::<BTreeSet<_>>()
    };
    let mut events = known(r#"{"event":"?","at":1}"#);
    events.insert("history".into());
    assert_eq!(values("event"), events);
    assert_eq!(values("fault"), known(r#"{"event":"fault","at":1,"fault":"?"}"#));
}

#[test]
fn tables_list_each_rule_and_cause() {
    let document = document();
    let has_row = |name: &str, description: &str| {
        let row = |line: &&str| {
            line.starts_with(&format!("| `{name}` |"))
                && line.ends_with(&format!("| {description} |"))
        };
        document.lines().find(row).is_some()
    };
    for rule in Rule::ALL {
        assert!(has_row(rule.name(), rule.description()), "{rule}");
        assert_eq!(serde_json::to_string(rule).unwrap(), format!("\"{rule}\""));
    }
    for cause in Cause::ALL {
        assert!(has_row(cause.name(), cause.description()), "{cause}");
        assert_eq!(serde_json::to_string(cause).unwrap(), format!("\"{cause}\""));
    }
}
