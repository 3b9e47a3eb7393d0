//! Dead letters: records that were given up, kept in a topic.
//!
//! A dead letter is published, then the key's entry becomes FAILED, then the offset is committed. A
//! crash in between leaves at most a second copy of the letter, and loses none.

mod headers;
mod policy;
mod publisher;
mod targets;
mod topic;

pub(crate) use self::headers::{Cause, Letter};
pub use self::headers::{InvalidLetter, LetterHeaders, LetterLock};
pub use self::policy::DeadLetter;
pub(crate) use self::publisher::{DeadLetters, GivenUpRecord};
pub(crate) use self::targets::DeadLetterTargets;
