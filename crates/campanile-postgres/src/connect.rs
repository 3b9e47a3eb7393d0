//! The first look at a server.

use std::error::Error;
use std::time::Duration;

use campanile_sql::VERSION;
use deadpool_postgres::Client;
use tokio::time::{Instant, sleep, timeout_at};

use crate::ConnectError;
use crate::error::may_pass;
use crate::migrate::version;
use crate::pool::Pool;

/// Between two looks for a server that is not up yet.
const PAUSE: Duration = Duration::from_millis(100);

/// Looks whether the server has the schema that this library is for.
pub(crate) async fn look(pool: &Pool, limit: Duration) -> Result<(), ConnectError> {
    let deadline = Instant::now() + limit;
    let client = connection_by(pool, limit, deadline).await?;
    let address = pool.address();
    let late = |_| ConnectError::TimedOut { address: address.into(), after: limit, source: None };
    match timeout_at(deadline, version(&client, address)).await.map_err(late)?? {
        Some(VERSION) => Ok(()),
        found => Err(ConnectError::Schema { address: address.into(), found }),
    }
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
