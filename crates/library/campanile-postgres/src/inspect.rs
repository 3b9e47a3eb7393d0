//! Reading entries without changing them.

use campanile_core::{State, StoreKey};
use campanile_idempotency::{
    Found, InspectStore, Inspection, ScanCursor, ScanFilter, ScanPage, StoreError,
};
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use crate::call::retention_micros;
use crate::failure::{Failure, WithAdvice};
use crate::store::Inner;
use crate::{PgStore, response};

pub(crate) const READ_ADVICE: &str = "a user that reads entries needs `GRANT USAGE ON SCHEMA \
    campanile` and `GRANT SELECT ON campanile.entry`";

/// The query for the clock and the entry of a key. Locks nothing, and always returns a row.
const INSPECT: &str = "SELECT clock.now, e.* \
    FROM (SELECT pg_catalog.clock_timestamp() AS now OFFSET 0) clock \
    LEFT JOIN campanile.entry e ON e.namespace = $1 AND e.key = $2 AND e.expires_at > clock.now";

const SCAN: &str = "SELECT now, next, (e).* FROM campanile.scan($1, $2, $3, $4, $5, $6)";

/// The maximum number of rows that a page of a scan examines: some milliseconds.
const ROWS_PER_PAGE: i32 = 1_000;

/// A page of a scan ends after entries with this many bytes of replies and details.
const PAGE_BYTES: i64 = 4 * 1024 * 1024;

impl InspectStore for PgStore {
    /// The user must be allowed to read the table, which a user of the store need not be:
    /// see [`PgConfig`](crate::PgConfig#permissions).
    async fn inspect(&self, key: &StoreKey) -> Result<Inspection, StoreError> {
        let (namespace, digest) = (key.namespace().as_str(), &key.digest()[..]);
        let rows = query(&self.0, INSPECT, &[&namespace, &digest], READ_ADVICE).await?;
        let row = rows.first().ok_or(Failure::Unexpected("a join returned no row"))?;
        Ok(Inspection::new(row.try_get("now").map_err(Failure::Server)?, read_found(row)?))
    }

    /// A page examines at most 1 000 entries, in the order of their digests.
    async fn scan(&self, filter: &ScanFilter, cursor: &ScanCursor) -> Result<ScanPage, StoreError> {
        let cursor = cursor.as_bytes();
        if ![0, DIGEST_LEN].contains(&cursor.len()) {
            return Err(StoreError::unreadable("the cursor is not one of a Postgres store"));
        }
        let namespace = filter.namespace().as_str();
        let states: Vec<i8> = filter.states().iter().map(|state| column_value(*state)).collect();
        let min_age = retention_micros(filter.min_age());
        let parameters: &[&(dyn ToSql + Sync)] =
            &[&namespace, &cursor, &states, &min_age, &ROWS_PER_PAGE, &PAGE_BYTES];
        // The time on the network is counted as the server's.
        let start = Instant::now();
        let rows = query(&self.0, SCAN, parameters, READ_ADVICE).await?;
        let busy = start.elapsed();
        let (last, rows) =
            rows.split_last().ok_or(Failure::Unexpected("a scan has no last row"))?;
        Ok(read_page(filter, rows, last)?.with_busy(busy))
    }
}

const DIGEST_LEN: usize = 16;

/// Runs a query within the command timeout. `advice` is for a user without the permission.
pub(crate) async fn query(
    store: &Inner,
    text: &str,
    parameters: &[&(dyn ToSql + Sync)],
    advice: &'static str,
) -> Result<Vec<Row>, StoreError> {
    let queried = async {
        let lease = store.pool.lease(store.command_timeout).await?;
        let queried = async {
            let statement = lease.prepare_cached(text).await?;
            lease.query(&statement, parameters).await
        };
        let rows = queried.await.map_err(|error| server_error(error, advice))?;
        lease.release();
        Ok(rows)
    };
    store.with_timeout(queried).await
}

fn server_error(error: tokio_postgres::Error, advice: &'static str) -> StoreError {
    if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        return StoreError::unavailable(WithAdvice { advice, error });
    }
    Failure::Server(error).into()
}

/// Reads the rows of a page. The last one has the clock and the cursor, but no entry.
fn read_page(filter: &ScanFilter, rows: &[Row], last: &Row) -> Result<ScanPage, Failure> {
    let mut entries = Vec::with_capacity(rows.len());
    for row in rows {
        let digest: &[u8] = row.try_get("key")?;
        let digest =
            digest.try_into().map_err(|_| Failure::Unexpected("a digest has another length"))?;
        let key = StoreKey::from_digest(filter.namespace().clone(), digest);
        entries.push((key, read_found(row)?));
    }
    let next: Option<&[u8]> = last.try_get("next")?;
    Ok(ScanPage::new(last.try_get("now")?, entries, next.map(ScanCursor::from_bytes)))
}

fn read_found(row: &Row) -> Result<Found, Failure> {
    Ok(match response::read_found(row)? {
        response::Found::Absent => Found::Absent,
        response::Found::Entry(entry) => {
            Found::Entry { entry, expires_at: row.try_get("expires_at")? }
        }
        response::Found::Unreadable(error) => {
            Found::Unreadable { reason: error.to_string().into() }
        }
    })
}

pub(crate) const fn column_value(state: State) -> i8 {
    let letter = match state {
        State::Processing => b'P',
        State::Retrying => b'R',
        State::Completed => b'C',
        State::Failed => b'F',
    };
    letter.cast_signed()
}
