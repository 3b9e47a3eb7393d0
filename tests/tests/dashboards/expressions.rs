//! Every expression parses, and names metrics, labels and values of the table of instruments, or `up`.

use std::collections::BTreeSet;
use std::convert::Infallible;

use campanile::metrics::{INSTRUMENTS, Instrument, InstrumentKind};
use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::{Expr, VectorSelector, parse};
use promql_parser::util::{ExprVisitor, walk_expr};

use crate::files;
use crate::prometheus::{Prometheus, promtool};

/// The labels that Prometheus adds to the instruments' own.
const ADDED: &[&str] = &["job", "instance", "le", NAME];

/// The metric that Prometheus records of each target.
const UP: &str = "up";

/// The label with the name of the metric.
const NAME: &str = "__name__";

/// Returns the instrument with this metric.
fn instrument(metric: &str) -> Option<&'static Instrument> {
    INSTRUMENTS.iter().copied().find(|instrument| names(instrument).iter().any(|it| it == metric))
}

/// The names of the metrics of an instrument, as in the guide.
fn names(instrument: &Instrument) -> Vec<String> {
    let name = instrument.prometheus_name();
    match instrument.kind {
        InstrumentKind::Histogram(_) => {
            ["bucket", "sum", "count"].map(|end| format!("{name}_{end}")).into()
        }
        _ => vec![name],
    }
}

/// Returns a metric that shows whether the instrument has recorded anything.
pub(crate) fn metric(instrument: &Instrument) -> String {
    names(instrument).pop().unwrap()
}

/// Collects all parts of an expression.
struct Parts(Vec<Expr>);

impl ExprVisitor for Parts {
    type Error = Infallible;

    fn pre_visit(&mut self, part: &Expr) -> Result<bool, Infallible> {
        self.0.push(part.clone());
        Ok(true)
    }
}

fn parts(expr: &Expr) -> Vec<Expr> {
    let mut parts = Parts(Vec::new());
    let Ok(_) = walk_expr(&mut parts, expr);
    parts.0
}

fn selectors(expr: &Expr) -> Vec<VectorSelector> {
    let selector = |part| match part {
        Expr::VectorSelector(selector) => Some(selector),
        Expr::MatrixSelector(selector) => Some(selector.vs),
        _ => None,
    };
    parts(expr).into_iter().filter_map(selector).collect()
}

/// Checks an expression, and returns the names of its instruments.
fn check(query: &str) -> BTreeSet<&'static str> {
    let expr = parse(query).unwrap_or_else(|error| panic!("{query}: {error}"));
    let mut names = BTreeSet::new();
    for selector in selectors(&expr) {
        for instrument in instruments(&selector, query) {
            names.insert(instrument.name);
            for matcher in &selector.matchers.matchers {
                check_matcher(instrument, matcher, query);
            }
        }
    }
    for part in parts(&expr) {
        let Expr::Aggregate(aggregate) = part else { continue };
        let labels = aggregate.modifier.iter().flat_map(|modifier| &modifier.labels().labels);
        for label in labels {
            for selector in selectors(&aggregate.expr) {
                for instrument in instruments(&selector, query) {
                    assert_label(instrument, label, query);
                }
            }
        }
    }
    assert!(!names.is_empty(), "{query} has no metric");
    names
}

/// Returns the instruments of a selector, which names its metric, or several as a label.
fn instruments(selector: &VectorSelector, query: &str) -> Vec<&'static Instrument> {
    let mut matchers = selector.matchers.matchers.iter();
    let label = || matchers.find(|it| it.name == NAME).map(|it| it.value.as_str());
    let metrics = selector.name.as_deref().or_else(label).unwrap_or_default();
    let find = |metric| instrument(metric).unwrap_or_else(|| panic!("{metric}? In {query}"));
    metrics.split('|').filter(|metric| *metric != UP).map(find).collect()
}

fn assert_label(instrument: &Instrument, label: &str, query: &str) {
    let mut own = instrument.attributes.iter().map(|it| it.name.replace('.', "_"));
    let has = own.any(|name| name == label) || ADDED.contains(&label);
    assert!(has, "{} has no label {label}, in {query}", instrument.name);
}

fn check_matcher(instrument: &Instrument, matcher: &Matcher, query: &str) {
    assert_label(instrument, &matcher.name, query);
    let attribute =
        instrument.attributes.iter().find(|it| it.name.replace('.', "_") == matcher.name);
    let Some(values) = attribute.map(|it| it.values).filter(|values| !values.is_empty()) else {
        return;
    };
    let texts: Vec<_> = match matcher.op {
        MatchOp::Re(_) | MatchOp::NotRe(_) => matcher.value.split('|').collect(),
        _ => vec![&*matcher.value],
    };
    for text in texts.into_iter().filter(|text| !text.is_empty()) {
        assert!(values.contains(&text), "{} is never {text}, in {query}", matcher.name);
    }
}

#[test]
fn panels_use_existing_metrics_and_labels() {
    let mut used = BTreeSet::new();
    for query in files::panels().iter().flat_map(|panel| &panel.queries) {
        used.extend(check(&query.expr));
    }
    let all: BTreeSet<_> = INSTRUMENTS.iter().map(|instrument| instrument.name).collect();
    let unused: Vec<_> = all.difference(&used).collect();
    assert!(unused.is_empty(), "no panel shows {unused:?}");
}

#[test]
fn variables_use_existing_metrics_and_labels() {
    let dashboard = files::dashboard();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let queries: Vec<_> = variables.iter().filter_map(|it| it["query"]["query"].as_str()).collect();
    assert_eq!(queries.len(), 3);
    for query in queries {
        let arguments = query.strip_prefix("label_values(").unwrap().strip_suffix(')').unwrap();
        let (selector, label) = arguments.rsplit_once(", ").unwrap();
        check(&files::substitute(&format!("sum by ({label}) ({selector})")));
    }
}

#[test]
fn alerts_use_existing_metrics_and_labels() {
    for rule in Prometheus::start(None).rules() {
        check(&rule.query);
    }
}

#[test]
fn alerts_fire_and_stay_silent_as_tested() {
    promtool(&["check", "rules", "alerts.yml"]);
    promtool(&["test", "rules", "alerts_test.yml"]);
    let tests = files::read("dashboards/alerts_test.yml");
    let lines: Vec<_> = tests.lines().map(str::trim).collect();
    for rule in Prometheus::start(None).rules() {
        let name = format!("alertname: {}", rule.name);
        let expectations = lines.windows(2).filter(|lines| lines[0] == name);
        let (silent, firing): (Vec<_>, Vec<_>) =
            expectations.partition(|lines| lines[1] == "exp_alerts: []");
        assert!(!silent.is_empty(), "no test in which {} is silent", rule.name);
        assert!(!firing.is_empty(), "no test in which {} fires", rule.name);
    }
}

/// Returns the expression without its last comparison, which is always on the left.
pub(crate) fn without_comparison(query: &str) -> String {
    let mut expr = parse(query).unwrap();
    while let Expr::Binary(binary) = &expr {
        if !binary.op.is_comparison_operator() && !binary.op.is_set_operator() {
            break;
        }
        expr = (*binary.lhs).clone();
    }
    expr.to_string()
}
