//! Changing when entries expire, for operators.

use std::time::{Duration, SystemTime};

use campanile_core::limits::MIN_RETENTION;
use campanile_core::{Entry, ExpireOutcome, StoreKey};
use campanile_idempotency::{ExpireStore, StoreError};
use tokio_postgres::types::ToSql;

use crate::PgStore;
use crate::call::retention_micros;
use crate::failure::Failure;
use crate::inspect::{column_value, query};

pub(crate) const EXPIRE_ADVICE: &str = "a user that changes when entries expire needs \
    `GRANT DELETE, UPDATE (expires_at) ON campanile.entry`";

/// Locks the entries that exist. The parameters are the namespace, when the entries expire in µs from
/// now, the minimum time from a grant in µs, and an array for each column that identifies an entry.
///
/// A row that another transaction has locked is skipped: it is being changed, and waiting for rows in
/// another order than a batch of an application could end in a deadlock. For a row that was changed
/// since the statement began, the columns are those of the new version.
macro_rules! locked {
    ($change:literal) => {
        concat!(
            "WITH clock AS MATERIALIZED (SELECT pg_catalog.clock_timestamp() AS now), \
            read AS ( \
                SELECT * FROM ROWS FROM ( \
                    pg_catalog.unnest($4::bytea[]), pg_catalog.unnest($5::bigint[]), \
                    pg_catalog.unnest($6::bigint[]), pg_catalog.unnest($7::\"char\"[]), \
                    pg_catalog.unnest($8::timestamptz[]) \
                ) read (key, token, owner, state, at) \
            ), \
            locked AS MATERIALIZED ( \
                SELECT e.key, \
                    e.token = read.token AND e.owner IS NOT DISTINCT FROM read.owner \
                        AND e.state = read.state AND e.at = read.at AS is_same, \
                    e.state = 'P' AND clock.now < e.at OR e.token + $3::bigint \
                        > (extract(epoch FROM clock.now) * 1000000)::bigint + $2::bigint AS is_kept \
                FROM read CROSS JOIN clock \
                JOIN campanile.entry e ON e.namespace = $1 AND e.key = read.key \
                    AND e.expires_at > clock.now \
                FOR UPDATE OF e SKIP LOCKED \
            ), \
            changed AS (",
            $change,
            " RETURNING 1) SELECT key, is_same, is_kept FROM locked"
        )
    };
}

const UPDATE: &str = locked!(
    "UPDATE campanile.entry e SET expires_at = campanile.after(clock.now, $2) FROM locked, clock \
    WHERE e.namespace = $1 AND e.key = locked.key AND is_same AND NOT is_kept"
);

const DELETE: &str = locked!(
    "DELETE FROM campanile.entry e USING locked \
    WHERE e.namespace = $1 AND e.key = locked.key AND is_same AND NOT is_kept"
);

/// The user must be allowed to read and to change the table, see
/// [`PgConfig`](crate::PgConfig#permissions).
impl ExpireStore for PgStore {
    async fn expire(
        &self,
        entries: &[(StoreKey, Entry)],
        after: Duration,
    ) -> Result<Vec<ExpireOutcome>, StoreError> {
        let Some((first, _)) = entries.first() else {
            return Ok(Vec::new());
        };
        let namespace = first.namespace().as_str();
        let digests: Vec<&[u8]> = entries.iter().map(|(key, _)| &key.digest()[..]).collect();
        let column = |column: fn(&Entry) -> i64| -> Vec<i64> {
            entries.iter().map(|(_, entry)| column(entry)).collect()
        };
        // Tokens are below 2^53, and the bits of owners have no sign.
        let tokens = column(|entry| entry.token().get().cast_signed());
        let owners: Vec<Option<i64>> =
            entries.iter().map(|(_, entry)| Some(entry.owner()?.get().cast_signed())).collect();
        let states: Vec<i8> =
            entries.iter().map(|(_, entry)| column_value(entry.state())).collect();
        let ats: Vec<SystemTime> = entries.iter().map(|(_, entry)| entry.at()).collect();
        let (statement, after) = match after.is_zero() {
            true => (DELETE, 0),
            false => (UPDATE, retention_micros(after)),
        };
        let youngest = retention_micros(MIN_RETENTION);
        let parameters: &[&(dyn ToSql + Sync)] =
            &[&namespace, &after, &youngest, &digests, &tokens, &owners, &states, &ats];
        let rows = query(&self.0, statement, parameters, EXPIRE_ADVICE).await?;
        let mut outcomes = vec![ExpireOutcome::Changed; entries.len()];
        for row in rows {
            let key: &[u8] = row.try_get("key").map_err(Failure::Server)?;
            let flag = |name| row.try_get(name).map_err(Failure::Server);
            let (is_same, is_kept): (bool, bool) = (flag("is_same")?, flag("is_kept")?);
            let position = digests.iter().position(|digest| *digest == key);
            let position = position.ok_or(Failure::Unexpected("a key that was not asked for"))?;
            outcomes[position] = match (is_same, is_kept) {
                (false, _) => ExpireOutcome::Changed,
                (true, true) => ExpireOutcome::Kept,
                (true, false) => ExpireOutcome::Done,
            };
        }
        Ok(outcomes)
    }
}
