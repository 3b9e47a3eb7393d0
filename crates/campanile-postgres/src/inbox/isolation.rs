//! How far transactions are kept apart.

/// The isolation level of the handlers' transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// Each statement sees what was committed before it. The default, as it is the server's.
    #[default]
    ReadCommitted,
    /// All statements see the same. The entry is a row as others: a transaction during which its lock was
    /// renewed cannot be serialized with that and is run again, so a handler must take less than a third
    /// of the lock's time to live.
    RepeatableRead,
    /// As if one transaction ran after the other; with the same bound as `RepeatableRead`.
    Serializable,
}

impl Isolation {
    /// Begins a transaction. The setting goes with it: its absence tells that a handler has ended the
    /// transaction by itself.
    pub(super) const fn begin(self) -> &'static str {
        match self {
            Self::ReadCommitted => {
                "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL campanile.inbox = 'open'"
            }
            Self::RepeatableRead => {
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE; SET LOCAL campanile.inbox = 'open'"
            }
            Self::Serializable => {
                "BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE; SET LOCAL campanile.inbox = 'open'"
            }
        }
    }
}
