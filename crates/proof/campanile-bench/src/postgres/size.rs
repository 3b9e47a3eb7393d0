//! Storage size of a COMPLETED key.

use campanile::BoxError;

use super::Environment;
use crate::report::{Report, Row};

/// Measures the entries left behind by the throughput benchmark.
pub(super) fn run(report: &mut Report, env: &Environment) -> Result<(), BoxError> {
    let keys = env.number("SELECT count(*) FROM campanile.entry")?;
    let mut row = |name, function: &str| -> Result<(), BoxError> {
        let bytes = env.number(&format!("SELECT {function}('campanile.entry')"))?;
        let values = vec![bytes / keys];
        report.add(Row {
            area: "postgres",
            name,
            unit: "bytes",
            values,
            reference: None,
            goal: None,
        });
        Ok(())
    };
    row("table, for each COMPLETED key", "pg_relation_size")?;
    row("index, for each COMPLETED key", "pg_indexes_size")
}
