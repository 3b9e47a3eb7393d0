//! Fields of log events.

use std::fmt;

use campanile_core::{Coordinates, Record, StoreKey};
use tracing::field::{DisplayValue, display};

/// The position of a request's record. Absent if the request has no record.
pub(crate) fn coordinates(record: Option<&Record>) -> Option<DisplayValue<&Coordinates>> {
    record.map(|record| display(record.coordinates()))
}

/// The digest of a key in hexadecimal digits. The key itself may contain personal data.
pub(crate) struct KeyDigest<'a>(pub(crate) &'a StoreKey);

impl fmt::Display for KeyDigest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.digest().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
