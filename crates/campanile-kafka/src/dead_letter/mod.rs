//! What becomes of records that are given up, where they are kept.
//!
//! A dead letter is published, then the key's entry becomes FAILED, then the offset is committed: a
//! crash in between leaves a second copy of the letter at most, and loses none.

mod bury;
mod headers;
mod policy;
mod targets;
mod topic;

pub(crate) use self::bury::{Dead, DeadLetters, Unburied};
pub use self::headers::HeaderStyle;
pub(crate) use self::headers::{Cause, Letter};
pub use self::policy::DeadLetter;
pub(crate) use self::targets::Targets;
