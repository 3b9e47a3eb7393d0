//! Storage size of a COMPLETED key.

use campanile::BoxError;

use super::Stage;
use crate::report::{Report, Row};

/// Measures the entries left behind by the throughput benchmark.
pub(super) fn run(report: &mut Report, stage: &Stage) -> Result<(), BoxError> {
    let keys = stage.number("SELECT count(*) FROM campanile.entry")?;
    let mut row = |name, function: &str| -> Result<(), BoxError> {
        let bytes = stage.number(&format!("SELECT {function}('campanile.entry')"))?;
        let values = vec![bytes / keys];
        report.add(Row {
            area: "postgres",
            name,
            unit: "bytes",
            values,
            against: None,
            goal: None,
        });
        Ok(())
    };
    row("table, for each COMPLETED key", "pg_relation_size")?;
    row("index, for each COMPLETED key", "pg_indexes_size")
}
