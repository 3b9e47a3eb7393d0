use std::time::Duration;

/// What happens to one call of a store: to all its commands alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Applied, but the answer is lost: an error comes instead.
    LoseReply,
    /// Not applied; an error.
    Refuse,
    /// Not applied until [`release`](super::FaultyStore::release), and never if the caller gives up
    /// before.
    Hang,
    /// Applied at once, and not answered until [`release`](super::FaultyStore::release).
    HangReply,
    /// Applied at once, and answered so much later by tokio's time.
    Slow(Duration),
    /// Applied, but the first of several answers is missing. No fault for a single command.
    FewerAnswers,
    /// Applied, but the last of several answers is there twice. No fault for a single command.
    MoreAnswers,
    /// Not applied; the store's code panics.
    Panic,
}
