//! The results, and what they are compared with.

mod comparison;

use std::fmt;

use campanile::BoxError;
use serde::{Serialize, Serializer};

pub(crate) use self::comparison::{Comparison, Goals};

/// Rows of results, printed as a table and written as JSON with one object per line.
pub(crate) struct Report {
    /// The machine's load before the benchmark: other work slows contestants down, but not equally.
    load: String,
    rows: Vec<Row>,
    comparisons: Vec<Comparison>,
}

/// One measurement, taken several times.
pub(crate) struct Row {
    pub(crate) area: &'static str,
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) values: Vec<f64>,
    /// The reference, measured in the same rounds and the same unit.
    pub(crate) reference: Option<(&'static str, Vec<f64>)>,
    /// The goal for the median of the ratios or, without a reference, for the median of the values.
    pub(crate) goal: Option<Goal>,
}

/// A bound on a median.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    fn is_met(self, reached: f64) -> bool {
        match self {
            Self::AtLeast(goal) => reached >= goal,
            Self::AtMost(goal) => reached <= goal,
        }
    }
}

impl Serialize for Goal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (Self::AtLeast(goal) | Self::AtMost(goal)) = self;
        serializer.serialize_f64(*goal)
    }
}

impl Report {
    pub(crate) fn new() -> Self {
        Self { load: load_average(), rows: Vec::new(), comparisons: Vec::new() }
    }

    pub(crate) fn add(&mut self, row: Row) {
        println!("{}", Line(&row));
        self.rows.push(row);
    }

    pub(crate) fn compare(&mut self, comparison: Comparison) {
        println!("{comparison}");
        self.comparisons.push(comparison);
    }

    pub(crate) fn json(&self) -> Result<String, BoxError> {
        let rows = self.rows.iter().map(|row| serde_json::to_string(&row.json()));
        let comparisons = self.comparisons.iter().map(Comparison::json);
        rows.chain(comparisons).map(|line| Ok(line? + "\n")).collect()
    }
}

impl Row {
    /// Ratio of each round.
    fn ratios(&self) -> Option<Vec<f64>> {
        let (_, reference) = self.reference.as_ref()?;
        Some(
            self.values.iter().zip(reference).map(|(value, reference)| value / reference).collect(),
        )
    }

    fn ratio(&self) -> Option<f64> {
        self.ratios().map(|ratios| Spread::of(&ratios).median)
    }

    fn is_goal_met(&self) -> Option<bool> {
        let reached = self.ratio().unwrap_or_else(|| Spread::of(&self.values).median);
        Some(self.goal?.is_met(reached))
    }

    fn json(&self) -> RowJson {
        RowJson {
            area: self.area,
            name: self.name,
            value: Spread::of(&self.values).median,
            unit: self.unit,
            against: self.reference.as_ref().map(|(name, _)| *name),
            ratio: self.ratio(),
            goal: self.goal,
            met: self.is_goal_met(),
        }
    }
}

#[derive(Serialize)]
struct RowJson {
    area: &'static str,
    name: &'static str,
    value: f64,
    unit: &'static str,
    against: Option<&'static str>,
    ratio: Option<f64>,
    goal: Option<Goal>,
    met: Option<bool>,
}

struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |i: usize| sorted.get(i).copied().unwrap_or(f64::NAN);
        Self { min: at(0), median: at(sorted.len() / 2), max: at(sorted.len().saturating_sub(1)) }
    }
}

/// Returns the median of these values.
pub(crate) fn median(values: &[f64]) -> f64 {
    Spread::of(values).median
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, median, max } = self;
        let digits = if *median < 100.0 { 2 } else { 0 };
        write!(f, "{min:>9.digits$} {median:>9.digits$} {max:>9.digits$}")
    }
}

/// One row as a line of the table.
struct Line<'a>(&'a Row);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = self.0;
        write!(f, "{:<6} {:<46} {} {:<9}", row.area, row.name, Spread::of(&row.values), row.unit)?;
        if let (Some((name, reference)), Some(ratios)) = (&row.reference, row.ratios()) {
            write!(f, " {:>9.0} {name:<44} {}", Spread::of(reference).median, Spread::of(&ratios))?;
        }
        match (row.goal, row.is_goal_met()) {
            (Some(goal), Some(true)) => write!(f, "   goal {goal}: met"),
            (Some(goal), Some(false)) => write!(f, "   goal {goal}: NOT MET"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(goal) => write!(f, ">= {goal}"),
            Self::AtMost(goal) => write!(f, "<= {goal}"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{}, load average {} before and {} after",
            machine(),
            self.load,
            load_average()
        )?;
        writeln!(
            f,
            "{:<6} {:<46} {:>9} {:>9} {:>9} {:<9} {:>9} {:<44} {:>9} {:>9} {:>9}",
            "area",
            "measured",
            "min",
            "median",
            "max",
            "unit",
            "median",
            "of",
            "ratio min",
            "median",
            "max"
        )?;
        for row in &self.rows {
            writeln!(f, "{}", Line(row))?;
        }
        for comparison in &self.comparisons {
            writeln!(f, "{comparison}")?;
        }
        Ok(())
    }
}

/// Describes the machine.
pub(crate) fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("an unknown processor", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("on {cores} cores of {model}")
}

/// Reads the number of threads that ran or were ready to run, averaged over the last minute.
fn load_average() -> String {
    let loads = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    loads.split(' ').next().filter(|load| !load.is_empty()).unwrap_or("unknown").to_owned()
}
