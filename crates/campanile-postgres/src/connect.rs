//! The first look at a server.

use std::error::Error;
use std::time::Duration;

use campanile_sql::VERSION;
use deadpool_postgres::Client;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::SqlState;

use crate::ConnectError;
use crate::error::may_pass;
use crate::pool::Pool;

const POOLER: &str = "a pooler gives one session to several connections: use one that gives each its own, \
    as PgBouncer does by `pool_mode = session`";

const GRANTS: &str = "`GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA campanile` to it, again after each \
    migration";

/// What the server knows a session by.
const SESSION: &str = "SELECT pg_catalog.pg_backend_pid()";

/// The same, the version of the schema, and the functions that the user may not call, those that are not
/// there among them.
const LOOK: &str = "SELECT pg_catalog.pg_backend_pid(), campanile.version(), ( \
    SELECT pg_catalog.string_agg(name, ', ') FROM pg_catalog.unnest('{acquire, renew, complete, adopt, \
        fail, release, cancel, reject, redrive, sweep, conclude, publish, relay}'::text[]) AS name \
    WHERE NOT EXISTS ( \
        SELECT FROM pg_catalog.pg_proc p WHERE p.proname = name \
        AND p.pronamespace = pg_catalog.to_regnamespace('campanile') \
        AND pg_catalog.has_function_privilege(p.oid, 'EXECUTE')))";

/// How long a second connection is waited for.
const SECOND: Duration = Duration::from_secs(1);

/// Between two looks for a server that is not up yet.
const PAUSE: Duration = Duration::from_millis(100);

/// Looks whether the server has the schema that this library is for, and lets us use it; tells where calls
/// that may take so long never will be answered. The pool is of two connections.
pub(crate) async fn look(pool: &Pool, limit: Duration, call: Duration) -> Result<(), ConnectError> {
    let deadline = Instant::now() + limit;
    let client = connection_by(pool, limit, deadline).await?;
    let address = pool.address();
    let late = |_| ConnectError::TimedOut { address: address.into(), after: limit, source: None };
    let looking = async {
        let said = |error| ConnectError::said(error, address);
        // Who cannot have a second one at once shares none.
        let other = timeout(SECOND, pool.client()).await;
        let sent = Instant::now();
        let [session, version, refused] = match asked(&client, LOOK).await {
            Err(error) if is_without_schema(&error) => {
                return Err(ConnectError::Schema { address: address.into(), found: None });
            }
            seen => seen.map_err(said)?,
        };
        let round_trip = sent.elapsed();
        if call < round_trip * 4 {
            // One half is for a connection, and in the other the first call over it prepares its statement.
            tracing::warn!(
                address,
                ?round_trip,
                "Postgres is so far away that calls will not be answered in time: \
                 `PgConfig::with_command_timeout` must be four round trips or more, and is {call:?}"
            );
        }
        // One after the other: at the same time a pooler would need two.
        if let Ok(Ok(other)) = other
            && asked(&other, SESSION).await.map_err(said)? == [session]
        {
            let source = POOLER.into();
            return Err(ConnectError::Unreachable { address: address.into(), source });
        }
        match version.and_then(|version| version.parse().ok()) {
            Some(VERSION) => {}
            found => return Err(ConnectError::Schema { address: address.into(), found }),
        }
        let Some(names) = refused else {
            return Ok(());
        };
        let source = format!("the user may not call {names}; {GRANTS}").into();
        Err(ConnectError::Denied { address: address.into(), source })
    };
    timeout_at(deadline, looking).await.map_err(late)?
}

/// The columns of the one row that a query without parameters has, in one round trip.
async fn asked<const N: usize>(
    client: &Client,
    query: &str,
) -> Result<[Option<String>; N], tokio_postgres::Error> {
    let messages = client.simple_query(query).await?;
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    Ok(std::array::from_fn(|column| row?.get(column).map(str::to_owned)))
}

fn is_without_schema(error: &tokio_postgres::Error) -> bool {
    let states = [SqlState::INVALID_SCHEMA_NAME, SqlState::UNDEFINED_FUNCTION];
    error.code().is_some_and(|state| states.contains(state))
}

/// A connection to a server that takes writes, which is waited for.
pub(crate) async fn connection(pool: &Pool, limit: Duration) -> Result<Client, ConnectError> {
    connection_by(pool, limit, Instant::now() + limit).await
}

async fn connection_by(
    pool: &Pool,
    limit: Duration,
    deadline: Instant,
) -> Result<Client, ConnectError> {
    let address = pool.address();
    let mut last = None;
    loop {
        let error = match timeout_at(deadline, pool.client()).await {
            Ok(Ok(client)) => return Ok(client),
            Ok(Err(error)) if may_pass(&error) => error,
            Ok(Err(error)) => return Err(ConnectError::of(error, address)),
            Err(_) => {
                let source = last.map(Into::into);
                return Err(ConnectError::TimedOut {
                    address: address.into(),
                    after: limit,
                    source,
                });
            }
        };
        if last.is_none() {
            tracing::warn!(address, error = &error as &dyn Error, ?limit, "waiting for Postgres");
        }
        last = Some(error);
        // What is due then shows at the next look.
        sleep(PAUSE).await;
    }
}
