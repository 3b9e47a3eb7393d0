//! The first look at a server.

use std::error::Error;
use std::time::Duration;

use campanile_sql::VERSION;
use deadpool_postgres::Client;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::SimpleQueryMessage;

use crate::ConnectError;
use crate::error::may_pass;
use crate::migrate::version;
use crate::pool::Pool;

const POOLER: &str = "a pooler gives one session to several connections: use one that gives each its own, \
    as PgBouncer does by `pool_mode = session`";

const GRANTS: &str = "`GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA campanile` to it, again after each \
    migration";

/// How long a second connection is waited for.
const SECOND: Duration = Duration::from_secs(1);

/// Between two looks for a server that is not up yet.
const PAUSE: Duration = Duration::from_millis(100);

/// Looks whether the server has the schema that this library is for, and lets us use it. The pool is of two
/// connections.
pub(crate) async fn look(pool: &Pool, limit: Duration) -> Result<(), ConnectError> {
    let deadline = Instant::now() + limit;
    let client = connection_by(pool, limit, deadline).await?;
    let address = pool.address();
    let late = |_| ConnectError::TimedOut { address: address.into(), after: limit, source: None };
    let looking = async {
        let said = |error| ConnectError::said(error, address);
        // Who cannot have a second one at once shares none.
        if let Ok(Ok(other)) = timeout(SECOND, pool.client()).await
            && session(&client).await.map_err(said)? == session(&other).await.map_err(said)?
        {
            let source = POOLER.into();
            return Err(ConnectError::Unreachable { address: address.into(), source });
        }
        match version(&client, address).await? {
            Some(VERSION) => {}
            found => return Err(ConnectError::Schema { address: address.into(), found }),
        }
        let refused = refused(&client).await.map_err(said)?;
        if refused.is_empty() {
            return Ok(());
        }
        let source = format!("the user may not call {}; {GRANTS}", refused.join(", ")).into();
        Err(ConnectError::Denied { address: address.into(), source })
    };
    timeout_at(deadline, looking).await.map_err(late)?
}

/// What the server knows a session by.
async fn session(client: &Client) -> Result<Option<String>, tokio_postgres::Error> {
    let messages = client.simple_query("SELECT pg_backend_pid()").await?;
    Ok(messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}

/// The functions that the user may not call, those that are not there among them.
async fn refused(client: &Client) -> Result<Vec<String>, tokio_postgres::Error> {
    const NAMES: [&str; 13] = [
        "acquire", "renew", "complete", "adopt", "fail", "release", "cancel", "reject", "redrive",
        "sweep", "conclude", "publish", "relay",
    ];
    const REFUSED: &str = "SELECT name FROM unnest($1::text[]) AS name WHERE NOT EXISTS ( \
        SELECT FROM pg_catalog.pg_proc p WHERE p.proname = name \
        AND p.pronamespace = to_regnamespace('campanile') \
        AND has_function_privilege(p.oid, 'EXECUTE'))";
    let rows = client.query(REFUSED, &[&&NAMES[..]]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
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
