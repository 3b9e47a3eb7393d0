//! Checks a server at the start.

use std::error::Error;
use std::time::Duration;

use campanile_core::error::find;
use deadpool_postgres::Client;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::SqlState;

use crate::ConnectError;
use crate::error::is_transient;
use crate::failure::ends_session;
use crate::findings::{HAS_STANDBYS, settings};
use crate::inspect::READ_ADVICE;
use crate::pool::Pool;

pub(crate) const SESSION_POOLING_ADVICE: &str = "the pooler shares one session between several connections; use session pooling, \
    such as `pool_mode = session` of PgBouncer";

/// The query for an identifier of the session.
const SESSION_ID: &str = "SELECT pg_catalog.pg_backend_pid()";

/// The permissions that a connection is checked for.
pub(crate) struct Permissions {
    /// An expression that yields what the user may not do, or null.
    missing: &'static str,
    advice: &'static str,
}

/// The permission to call each function that this version calls. Functions of another version may
/// have the same name, and another number of parameters.
pub(crate) const TO_CALL: Permissions = Permissions {
    missing: "SELECT 'call ' || pg_catalog.string_agg(name, ', ') \
        FROM (VALUES ('acquire', 9), ('renew', 6), ('complete', 7), ('adopt', 9), ('fail', 8), \
            ('release', 6), ('cancel', 4), ('give_up', 6), ('record_step', 7), ('redrive', 5), \
            ('sweep', 2), ('conclude', 7), ('publish', 6), ('relay', 6), ('backlog', 1)) AS called (name, parameters) \
        WHERE NOT EXISTS ( \
            SELECT FROM pg_catalog.pg_proc p \
            WHERE p.proname = name AND p.pronargs = parameters \
            AND p.pronamespace = pg_catalog.to_regnamespace('campanile') \
            AND pg_catalog.has_function_privilege(p.oid, 'EXECUTE'))",
    advice: "run `GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA campanile` for it, again after each \
        migration",
};

/// No permission.
pub(crate) const NO_PERMISSION: Permissions = Permissions { missing: "NULL", advice: "" };

/// The permission to read entries.
pub(crate) const TO_READ: Permissions = Permissions {
    missing: "SELECT 'read campanile.entry' \
        WHERE NOT pg_catalog.has_table_privilege('campanile.entry', 'SELECT')",
    advice: READ_ADVICE,
};

/// How often two connections are asked in turn whether their sessions are shared.
const ROUNDS: usize = 6;

/// The upper limit of all timeouts, so that their deadlines can be computed without overflow.
pub(crate) const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// The pause between two attempts to reach a server that is not up yet.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Checks that the server has this version of the schema and that the user has these permissions.
/// Warns if calls limited to `call_timeout` cannot be answered in time. The pool must allow two
/// connections.
pub(crate) async fn check_server(
    pool: &Pool,
    limit: Duration,
    call_timeout: Duration,
    required: i32,
    permissions: &Permissions,
) -> Result<(), ConnectError> {
    let deadline = Instant::now() + limit.min(MAX_TIMEOUT);
    let address = pool.address();
    loop {
        let client = wait_for_connection_until(pool, limit, deadline).await?;
        let checking = check_connection(pool, &client, call_timeout, required, permissions);
        let checked = timeout_at(deadline, checking).await.unwrap_or_else(|_| {
            Err(ConnectError::TimedOut { address: address.into(), after: limit, source: None })
        });
        match checked {
            // The server is restarting, or has just failed over: it is waited for as before.
            Err(error) if is_connection_lost(&error) && Instant::now() + RETRY_PAUSE < deadline => {
                tracing::warn!(
                    address,
                    error = &error as &dyn Error,
                    ?limit,
                    "waiting for Postgres"
                );
                sleep(RETRY_PAUSE).await;
            }
            checked => return checked,
        }
    }
}

/// Checks the server over this connection, and a second one.
async fn check_connection(
    pool: &Pool,
    client: &Client,
    call_timeout: Duration,
    required: i32,
    permissions: &Permissions,
) -> Result<(), ConnectError> {
    let address = pool.address();
    let from_server = |error| ConnectError::from_server(error, address);
    // If the server refuses a second connection, this one is asked alone. A pooler would let it wait.
    let other = pool.client(MAX_TIMEOUT).await.ok();
    let Permissions { missing, advice } = permissions;
    let check = format!("{SESSION_ID}, campanile.version(), ({missing}), {}", settings!());
    let sent = Instant::now();
    let [session, version, missing, settings] = match query_row(client, &check).await {
        Err(error) if is_without_schema(&error) => {
            return Err(ConnectError::Schema { address: address.into(), found: None });
        }
        result => result.map_err(from_server)?,
    };
    let round_trip = sent.elapsed();
    if call_timeout < round_trip * 4 {
        // A call waits for a connection for at most half of its time. The first call over a new
        // connection also prepares its statement.
        tracing::warn!(
            address,
            ?round_trip,
            "Postgres is too far away for the command timeout; calls will time out: \
                 `PgConfig::with_command_timeout` must be at least four round trips, and is {call_timeout:?}"
        );
    }
    // In turn on purpose: an idle pooler uses one session for both connections, and a busy one uses
    // several sessions for this connection. It may be idle for a moment.
    let mut is_shared = false;
    for _ in 0..ROUNDS {
        if let Some(other) = &other {
            is_shared |=
                query_row(other, SESSION_ID).await.map_err(from_server)? == [session.clone()];
        }
        is_shared |= query_row(client, SESSION_ID).await.map_err(from_server)? != [session.clone()];
    }
    if is_shared {
        let source = SESSION_POOLING_ADVICE.into();
        return Err(ConnectError::Unreachable { address: address.into(), source });
    }
    match version.and_then(|version| version.parse().ok()) {
        Some(found) if found == required => {}
        found => return Err(ConnectError::Schema { address: address.into(), found }),
    }
    if let Some(missing) = missing {
        let source = format!("the user may not {missing}; {advice}").into();
        return Err(ConnectError::Denied { address: address.into(), source });
    }
    // A server that hides its standbys is used all the same.
    let standbys = query_row(client, HAS_STANDBYS).await;
    let has_standbys = standbys.is_ok_and(|[exists]| exists.as_deref() == Some("t"));
    pool.sessions.watch.start(settings.unwrap_or_default(), has_standbys, address);
    Ok(())
}

/// Checks whether the connection was lost, which says nothing about the server.
fn is_connection_lost(error: &ConnectError) -> bool {
    let ConnectError::Unreachable { source, .. } = error else { return false };
    find::<tokio_postgres::Error>(&**source).is_some_and(|error| {
        error.is_closed() || ends_session(error) || find::<std::io::Error>(error).is_some()
    })
}

/// Runs a query without parameters in one round trip, and reads the columns of its only row.
async fn query_row<const N: usize>(
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

/// Connects to a server that accepts writes, and waits for such a server.
pub(crate) async fn wait_for_connection(
    pool: &Pool,
    limit: Duration,
) -> Result<Client, ConnectError> {
    wait_for_connection_until(pool, limit, Instant::now() + limit.min(MAX_TIMEOUT)).await
}

async fn wait_for_connection_until(
    pool: &Pool,
    limit: Duration,
    deadline: Instant,
) -> Result<Client, ConnectError> {
    let address = pool.address();
    let mut last = None;
    loop {
        let error = match timeout_at(deadline, pool.client(limit)).await {
            Ok(Ok(client)) => return Ok(client),
            Ok(Err(error)) if is_transient(&error) => error,
            Ok(Err(error)) => return Err(ConnectError::from_pool(error, address)),
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
        // If the deadline passes during the pause, the next attempt times out.
        sleep(RETRY_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files with statements that an application sends.
    const SOURCES: &[&str] = &[
        include_str!("call.rs"),
        include_str!("sweep.rs"),
        include_str!("inbox/open_transaction.rs"),
        include_str!("outbox/publish.rs"),
        include_str!("outbox/session.rs"),
    ];

    #[test]
    fn permission_to_call_each_function_is_checked() {
        let calls = SOURCES.iter().flat_map(|source| source.split("campanile.").skip(1));
        let called = calls.filter_map(|call| {
            let (name, rest) = call.split_once('(')?;
            let (arguments, _) = rest.split_once(')')?;
            arguments.starts_with('$').then(|| (name, arguments.split(',').count()))
        });
        let called: Vec<_> = called.collect();
        assert!(called.len() >= 15, "{called:?}");
        for (name, parameters) in called {
            let checked = format!("('{name}', {parameters})");
            assert!(TO_CALL.missing.contains(&checked), "{checked} is missing");
        }
    }
}
