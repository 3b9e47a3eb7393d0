use std::fmt;

/// A guarantee that a store broke.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The name of the guarantee.
    pub guarantee: &'static str,
    /// What the store did instead.
    pub observed: String,
}

impl Violation {
    pub(super) fn new(guarantee: &'static str, observed: String) -> Self {
        Self { guarantee, observed }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.guarantee.replace('_', " ");
        write!(f, "{name}: {}", self.observed)
    }
}
