use std::fmt;

/// A promise that a store broke.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The name of the promise.
    pub promise: &'static str,
    /// What the store did instead.
    pub seen: String,
}

impl Violation {
    pub(super) fn new(promise: &'static str, seen: String) -> Self {
        Self { promise, seen }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.promise.replace('_', " ");
        write!(f, "{name}: {}", self.seen)
    }
}
