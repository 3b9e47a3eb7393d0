//! The relay's connection.

use std::time::Duration;

use campanile_core::BoxError;
use tokio::time::timeout;
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;

use super::lane::Message;
use crate::PgConfig;
use crate::failure::explained;
use crate::pool::Lease;

/// What a statement may take: a page of messages may come from far away, and nobody waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// The server ends a session that asks nothing for so long: its process stands still, and another is to lead. One
/// that leads asks each second.
const SILENT: &str = "SET idle_session_timeout = '15s'";

/// A session of the relay's own. Dropped, it is closed, and leads no more.
pub(super) struct Session {
    lease: Lease,
    relay: Statement,
}

/// What is asked for.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// To be deleted.
    pub(super) published: Vec<i64>,
    /// Not to be given, with those behind them that have the same key.
    pub(super) held: Vec<i64>,
    /// To be given again.
    pub(super) due: Vec<i64>,
    /// Topics of which no others are to be given.
    pub(super) full: Vec<String>,
    /// How many others, and how many bytes.
    pub(super) most: i32,
    pub(super) size: i64,
}

impl Session {
    pub(super) async fn open(config: &PgConfig) -> Result<Self, BoxError> {
        const RELAY: &str = "SELECT * FROM campanile.relay($1, $2, $3, $4, $5, $6)";
        let pool = config.few()?;
        let opening = async {
            let lease = pool.lease().await.map_err(|error| pool.unreachable(error))?;
            lease.batch_execute(SILENT).await.map_err(explained)?;
            let relay = lease.prepare(RELAY).await.map_err(explained)?;
            Ok(Self { lease, relay })
        };
        timeout(PATIENCE, opening).await?
    }

    /// Takes the lead, unless another session has it: there is one for a database.
    pub(super) async fn try_lead(&self) -> Result<bool, BoxError> {
        // Of this project, and of nobody else.
        const LOCK: i64 = 0x6361_6d70_616e_6901;
        const TRY: &str = "SELECT pg_try_advisory_lock($1)";
        let row = timeout(PATIENCE, self.lease.query_one(TRY, &[&LOCK])).await?;
        Ok(row.map_err(explained)?.try_get(0)?)
    }

    /// Deletes what is published, and gives the next messages.
    pub(super) async fn exchange(&self, asked: Asked) -> Result<(Asked, Vec<Message>), BoxError> {
        let Asked { published, held, due, full, most, size } = &asked;
        let parameters: &[&(dyn ToSql + Sync)] = &[published, held, due, full, most, size];
        let rows = timeout(PATIENCE, self.lease.query(&self.relay, parameters)).await?;
        let rows = rows.map_err(explained)?;
        let messages = rows.iter().map(Message::read).collect::<Result<_, _>>()?;
        Ok((asked, messages))
    }
}
