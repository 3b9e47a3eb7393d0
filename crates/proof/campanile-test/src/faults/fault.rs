use std::time::Duration;

/// What happens to one call of a store, and so to all commands of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The call is applied, but the answer is lost: the caller gets an error.
    LoseReply,
    /// The call is not applied; the caller gets an error.
    Refuse,
    /// The call is not applied until [`release`](super::FaultyStore::release), and never if the
    /// caller gives up before then.
    Hang,
    /// The call is applied at once, but not answered until
    /// [`release`](super::FaultyStore::release).
    HangReply,
    /// The call is applied at once and answered after this delay, on tokio's time.
    Slow(Duration),
    /// The call is applied, but the first of several answers is missing. Has no effect on a single
    /// command.
    FewerAnswers,
    /// The call is applied, but the last of several answers comes twice. Has no effect on a single
    /// command.
    MoreAnswers,
    /// The call is not applied; the store panics.
    Panic,
}
