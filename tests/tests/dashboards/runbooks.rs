//! The alerts, their runbooks and the panels name each other.

use std::collections::BTreeSet;

use crate::files::{self, Panel};
use crate::prometheus::Prometheus;

const RUNBOOKS: &str = "docs/runbooks.md";

/// Returns each runbook's name and text.
fn runbooks() -> Vec<(String, String)> {
    let text = files::read(RUNBOOKS);
    let sections = text.split("\n## ").skip(1).map(|section| section.split_once('\n').unwrap());
    let of_alerts = sections.filter(|(title, _)| title.starts_with("Campanile"));
    of_alerts.map(|(title, text)| (title.to_owned(), text.to_owned())).collect()
}

#[test]
fn each_alert_has_a_runbook_and_each_runbook_an_alert() {
    let rules = Prometheus::start(None).rules();
    for rule in &rules {
        let anchor = format!("{RUNBOOKS}#{}", rule.name.to_lowercase());
        assert_eq!(rule.runbook_url, anchor, "{}", rule.name);
        assert!(["page", "ticket"].contains(&&*rule.severity), "{}", rule.name);
        assert!(!rule.summary.is_empty(), "{}", rule.name);
    }
    let alerts: Vec<_> = rules.into_iter().map(|rule| rule.name).collect();
    let titles: Vec<_> = runbooks().into_iter().map(|(title, _)| title).collect();
    assert_eq!(titles, alerts, "in the same order");
}

#[test]
fn runbooks_have_their_parts_and_name_existing_panels() {
    let titles: BTreeSet<_> = files::panels().into_iter().map(|panel| panel.title).collect();
    for (name, text) in runbooks() {
        for part in ["**Meaning.**", "**Look at.**", "**Fix.**", "**Do not**"] {
            assert!(text.contains(part), "{name} has no {part}");
        }
        let look = text.split("**Look at.**").nth(1).unwrap().split("**Fix.**").next().unwrap();
        // Panels are in italics.
        let panels: Vec<_> = look.split('*').skip(1).step_by(2).collect();
        assert!(!panels.is_empty(), "{name} names no panel");
        for panel in panels {
            let panel = panel.replace('\n', " ");
            assert!(titles.contains(&panel), "{name}: no panel `{panel}`");
        }
    }
}

#[test]
fn panels_say_what_they_mean_and_name_existing_runbooks() {
    let names: BTreeSet<_> = runbooks().into_iter().map(|(name, _)| name).collect();
    let mut titles = BTreeSet::new();
    for Panel { title, description, .. } in files::panels() {
        assert!(description.len() > 60, "{title}: {description}");
        let words = description.split(|c: char| !c.is_alphanumeric());
        let is_name = |word: &&str| word.len() > "Campanile".len() && word.starts_with("Campanile");
        for word in words.filter(is_name) {
            assert!(names.contains(word), "{title}: no runbook {word}");
        }
        assert!(titles.insert(title.clone()), "two panels {title}");
    }
}

#[test]
fn dashboard_is_well_formed() {
    let dashboard = files::dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "each id is unique");
    let mut cells = BTreeSet::new();
    for panel in panels {
        let size = |side: &str| panel["gridPos"][side].as_u64().unwrap();
        for x in size("x")..size("x") + size("w") {
            assert!(x < 24, "{} is too wide", panel["title"]);
            for y in size("y")..size("y") + size("h") {
                assert!(cells.insert((x, y)), "{} overlaps another panel", panel["title"]);
            }
        }
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
            let selects = target["expr"].as_str().unwrap().contains(r#"job=~"$job""#);
            assert!(selects, "{} has all jobs", panel["title"]);
        }
    }
}
