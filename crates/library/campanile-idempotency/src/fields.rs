//! Fields of log events.

use campanile_core::{Coordinates, Record};
use tracing::field::{DisplayValue, display};

/// The position of a request's record. Absent if the request has no record.
pub(crate) fn coordinates(record: Option<&Record>) -> Option<DisplayValue<&Coordinates>> {
    record.map(|record| display(record.coordinates()))
}
