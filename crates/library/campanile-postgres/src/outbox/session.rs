//! The relay's connection.

use std::time::Duration;

use campanile_core::BoxError;
use tokio::time::timeout;
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;

use super::key_queue::Message;
use crate::failure::with_advice;
use crate::pool::{Lease, Pool};

/// The time limit of a statement. It is generous, because a page of messages may come from far away
/// and no caller waits for it.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// The server ends an idle session after this time, so that another relay leads if this process
/// hangs. A leader sends a statement every second.
const SET_IDLE_TIMEOUT: &str = "SET idle_session_timeout = '15s'";

/// The maximum number of messages that are counted, which takes some milliseconds.
const MAX_BACKLOG: i32 = 10_000;

/// The relay's own session. Dropping it closes it and gives up the lead.
pub(super) struct Session {
    lease: Lease,
    relay: Statement,
    backlog: Statement,
}

/// The messages in the table.
#[derive(Default)]
pub(super) struct Backlog {
    /// At most [`MAX_BACKLOG`].
    pub(super) messages: i64,
    /// In seconds.
    pub(super) oldest_age: f64,
}

/// The arguments of an exchange.
#[derive(Debug, Default)]
pub(super) struct ExchangeRequest {
    /// Messages to delete.
    pub(super) published: Vec<i64>,
    /// Messages not to return, together with all later messages of the same key.
    pub(super) held: Vec<i64>,
    /// Messages to return again.
    pub(super) due: Vec<i64>,
    /// Topics of which no other messages are to be returned.
    pub(super) full_topics: Vec<String>,
    /// The maximum number of other messages, and of their bytes.
    pub(super) max_messages: i32,
    pub(super) max_bytes: i64,
}

impl Session {
    pub(super) async fn open(pool: &Pool) -> Result<Self, BoxError> {
        const RELAY: &str = "SELECT * FROM campanile.relay($1, $2, $3, $4, $5, $6)";
        const BACKLOG: &str = "SELECT messages, oldest_age FROM campanile.backlog($1)";
        let opening = async {
            let lease = pool.lease(STATEMENT_TIMEOUT).await?;
            lease.batch_execute(SET_IDLE_TIMEOUT).await.map_err(with_advice)?;
            let relay = lease.prepare(RELAY).await.map_err(with_advice)?;
            let backlog = lease.prepare(BACKLOG).await.map_err(with_advice)?;
            Ok(Self { lease, relay, backlog })
        };
        timeout(STATEMENT_TIMEOUT, opening).await?
    }

    /// Takes the lead, unless another session of the database has it.
    pub(super) async fn try_lead(&self) -> Result<bool, BoxError> {
        // Identifies this project's relay among all advisory locks.
        const LOCK: i64 = 0x6361_6d70_616e_6901;
        const TRY: &str = "SELECT pg_try_advisory_lock($1)";
        let row = timeout(STATEMENT_TIMEOUT, self.lease.query_one(TRY, &[&LOCK])).await?;
        Ok(row.map_err(with_advice)?.try_get(0)?)
    }

    /// Deletes the published messages and fetches the next ones.
    pub(super) async fn exchange(
        &self,
        request: ExchangeRequest,
    ) -> Result<(ExchangeRequest, Vec<Message>), BoxError> {
        let ExchangeRequest { published, held, due, full_topics, max_messages, max_bytes } =
            &request;
        let parameters: &[&(dyn ToSql + Sync)] =
            &[published, held, due, full_topics, max_messages, max_bytes];
        let rows = timeout(STATEMENT_TIMEOUT, self.lease.query(&self.relay, parameters)).await?;
        let rows = rows.map_err(with_advice)?;
        let messages = rows.iter().map(Message::read).collect::<Result<_, _>>()?;
        Ok((request, messages))
    }

    /// Counts the messages in the table.
    pub(super) async fn backlog(&self) -> Result<Backlog, BoxError> {
        let query = self.lease.query_one(&self.backlog, &[&MAX_BACKLOG]);
        let row = timeout(STATEMENT_TIMEOUT, query).await?.map_err(with_advice)?;
        Ok(Backlog { messages: row.try_get(0)?, oldest_age: row.try_get(1)? })
    }
}
