//! The table of instruments: its names, its documentation, and its tests.

use std::collections::{BTreeMap, BTreeSet};

use campanile::metrics::{Attribute, INSTRUMENTS, Instrument, InstrumentKind};

use crate::scrape::Scrape;

const GUIDE: &str = include_str!("../../src/guide/observability.md");

/// The tests, in which each instrument has a value that is not zero.
const TESTS: &[&str] = &[
    include_str!("layer.rs"),
    include_str!("observing.rs"),
    include_str!("consumer.rs"),
    include_str!("stores.rs"),
];

fn kind(instrument: &Instrument) -> &'static str {
    match instrument.kind {
        InstrumentKind::Counter => "counter",
        InstrumentKind::Gauge => "gauge",
        InstrumentKind::Histogram(_) => "histogram",
        _ => panic!("no name for {instrument:?}"),
    }
}

/// The row of an instrument in the guide.
fn row(instrument: &Instrument) -> String {
    let attributes: Vec<_> = instrument.attributes.iter().map(|it| it.name).collect();
    let Instrument { name, unit, description, .. } = instrument;
    format!(
        "| `{name}` | {}, `{unit}` | {} | {description} |",
        kind(instrument),
        quoted(&attributes)
    )
}

/// The rows of the attributes with fixed values. The same attribute may have other values in another
/// instrument.
fn attribute_rows() -> Vec<String> {
    let mut uses: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for instrument in INSTRUMENTS {
        for Attribute { name, values, .. } in instrument.attributes {
            if !values.is_empty() {
                uses.entry((*name, *values)).or_default().push(instrument.name);
            }
        }
    }
    let names: Vec<_> = uses.keys().map(|(name, _)| *name).collect();
    let row = |((name, values), instruments): (&(&str, &[&str]), &Vec<&str>)| {
        let is_ambiguous = names.iter().filter(|other| *other == name).count() > 1;
        let of = if is_ambiguous { format!(" of {}", quoted(instruments)) } else { String::new() };
        format!("| `{name}`{of} | {} |", quoted(values))
    };
    uses.iter().map(row).collect()
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Returns the rows of the guide's table under this header.
fn table(header: &str) -> Vec<&'static str> {
    let lines = GUIDE.lines().skip_while(|line| !line.starts_with(header));
    lines.skip(2).take_while(|line| line.starts_with('|')).collect()
}

#[test]
fn guide_lists_every_instrument() {
    let rows: Vec<_> = INSTRUMENTS.iter().map(|instrument| row(instrument)).collect();
    assert!(table("| name | kind") == rows, "the table should be:\n{}", rows.join("\n"));
}

#[test]
fn guide_lists_every_value_of_an_attribute() {
    let rows = attribute_rows();
    assert!(table("| attribute | values") == rows, "the table should be:\n{}", rows.join("\n"));
}

#[test]
fn instruments_are_well_formed() {
    let names: BTreeSet<_> = INSTRUMENTS.iter().map(|instrument| instrument.name).collect();
    assert_eq!(names.len(), INSTRUMENTS.len(), "each name is unique");
    for instrument in INSTRUMENTS {
        let Instrument { name, unit, description, .. } = instrument;
        assert!(name.starts_with("campanile.") || name.starts_with("messaging."), "{name}");
        let counts = unit.starts_with('{') && unit.ends_with('}');
        assert!(counts || ["s", "By"].contains(unit), "{name}: {unit}");
        assert!(description.ends_with('.'), "{name}: {description}");
        // An exporter would otherwise not add the suffix, or add it in another place.
        let suffixes = ["seconds", "bytes", "total", "sum", "count", "bucket"];
        assert!(!suffixes.iter().any(|suffix| name.ends_with(suffix)), "{name}");
        if let InstrumentKind::Histogram(bounds) = instrument.kind {
            assert!(!bounds.is_empty() && bounds.is_sorted_by(|a, b| a < b), "{name}");
        }
    }
}

#[test]
fn every_instrument_has_a_test() {
    let untested = INSTRUMENTS.iter().map(|instrument| instrument.prometheus_name());
    let is_quoted = |name: &String| {
        let ends = ["\"", "_count\"", "_sum\""].map(|end| format!("\"{name}{end}"));
        TESTS.iter().any(|test| ends.iter().any(|end| test.contains(end)))
    };
    let untested: Vec<_> = untested.filter(|name| !is_quoted(name)).collect();
    assert!(untested.is_empty(), "no test has a value of {untested:?}");
}

/// Checks that all samples of a recorder belong to the table, with the types and labels that it says.
pub(crate) fn assert_defined(scrape: &Scrape) {
    let text = scrape.0.render();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (name, type_name) = match line.strip_prefix("# TYPE ") {
            Some(typed) => typed.split_once(' ').unwrap(),
            None => continue,
        };
        let instrument = INSTRUMENTS.iter().find(|instrument| instrument.prometheus_name() == name);
        let instrument = instrument.unwrap_or_else(|| panic!("{name} is not in the table"));
        assert_eq!(type_name, kind(instrument), "{name}");
        let help = format!("# HELP {name} ");
        assert!(text.lines().any(|line| line.starts_with(&help)), "{name} has no description");
        let allowed: Vec<_> =
            instrument.attributes.iter().map(|it| it.name.replace('.', "_")).collect();
        for label in labels_of(&text, name) {
            assert!(label == "le" || allowed.contains(&label), "{name} has the label {label}");
        }
    }
}

fn labels_of(text: &str, name: &str) -> BTreeSet<String> {
    let series = text.lines().filter(|line| !line.starts_with('#') && line.starts_with(name));
    let labels = series.filter_map(|line| Some(line.split_once('{')?.1.rsplit_once('}')?.0));
    let names = labels.flat_map(|labels| labels.split("\",").filter_map(|it| it.split_once("=\"")));
    names.map(|(name, _)| name.to_owned()).collect()
}
