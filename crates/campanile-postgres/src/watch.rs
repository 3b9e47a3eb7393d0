//! The settings of the server that decide which acknowledged writes a failure can lose.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::{Client, SimpleQueryMessage};

/// Returns the settings that the session returned last, and those of now. A session keeps the
/// settings of its role and database: compared with itself, it has no news of them.
pub(crate) const SETTINGS: &str = "SELECT pg_catalog.current_setting('campanile.seen', true), \
    pg_catalog.set_config('campanile.seen', pg_catalog.concat_ws(' ', \
        'synchronous_commit=' || pg_catalog.current_setting('synchronous_commit'), \
        'fsync=' || pg_catalog.current_setting('fsync'), \
        'synchronous_standby_names=' || pg_catalog.current_setting('synchronous_standby_names')), \
    false)";

/// While calls are made, the settings are read at this interval, together with a call.
const INTERVAL: Duration = Duration::from_secs(3);

/// Reports changes of the settings: by a reload, and on a new connection, which sees those of its
/// role and database. The pools of a store share it.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    due: Mutex<Option<Instant>>,
    reported: Mutex<Option<String>>,
}

impl Watch {
    /// Reads the settings over a connection in use, if they were not read lately. A connection that
    /// breaks fails the call as well, so errors are not reported.
    pub(crate) async fn refresh(&self, client: &Client, address: &str) {
        let now = Instant::now();
        if !self.is_due(now) {
            return;
        }
        if let Ok(rows) = client.simple_query(SETTINGS).await {
            self.observe(&rows, address);
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = due.is_none_or(|due| now >= due);
        if is_due {
            *due = Some(now + INTERVAL);
        }
        is_due
    }

    /// Compares the answer to [`SETTINGS`], which is the last row.
    pub(crate) fn observe(&self, rows: &[SimpleQueryMessage], address: &str) {
        let row = rows.iter().rev().find_map(|message| match message {
            SimpleQueryMessage::Row(row) if row.len() == 2 => Some(row),
            _ => None,
        });
        let Some(new) = row.filter(|row| row.get(0) != row.get(1)).and_then(|row| row.get(1))
        else {
            return;
        };
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = reported.replace(new.to_owned()).filter(|old| old != new) {
            tracing::warn!(
                address,
                old,
                new,
                "a setting of Postgres was changed that decides which acknowledged writes a \
                 failure can lose"
            );
        }
    }
}
