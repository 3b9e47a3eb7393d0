//! The isolation levels.

/// The isolation level of the handlers' transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// Each statement sees what was committed before it. The default, because it is the server's.
    #[default]
    ReadCommitted,
    /// All statements see the same snapshot. The entry is a row like any other: if the lock is
    /// renewed during the transaction, the transaction cannot be serialized and runs again. A
    /// handler must therefore take less than a third of the lock's time to live.
    RepeatableRead,
    /// Transactions behave as if they ran one after the other. The limit of `RepeatableRead`
    /// applies.
    Serializable,
}

impl Isolation {
    /// The statements that begin a transaction. The local setting ends with the transaction: if it
    /// is missing, the handler has ended the transaction itself.
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
