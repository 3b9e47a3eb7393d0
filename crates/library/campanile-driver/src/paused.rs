//! Why a consumer is paused.

use std::fmt;

/// The reason why a consumer is paused.
///
/// More reasons and fields may be added, so patterns must allow for both:
///
/// ```
/// use campanile_driver::Paused;
///
/// fn page(why: &Paused) -> Option<String> {
///     match why {
///         // The operator who paused the consumer knows.
///         Paused::ByHandle => None,
///         Paused::Flood { limit, .. } => Some(format!("more than {limit} dead letters at a time")),
///         other => Some(other.to_string()),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Paused {
    /// Paused by [`Handle::pause`](crate::Handle::pause).
    ByHandle,
    /// Paused by the [`FloodLimit`](crate::FloodLimit): one more dead letter would have been more than
    /// `limit` among the last `window` finished records.
    #[non_exhaustive]
    Flood {
        /// The maximum number of dead letters.
        limit: usize,
        /// The number of finished records that are considered.
        window: usize,
    },
}

impl fmt::Display for Paused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByHandle => f.write_str("paused by a handle"),
            Self::Flood { limit, window } => write!(
                f,
                "paused by the flood limit: one more would be more than {limit} dead letters among \
                 the last {window} finished records"
            ),
        }
    }
}
