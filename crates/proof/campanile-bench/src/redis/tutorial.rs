//! The two calls shown in tutorials: `SET NX`, then a script that completes.

use campanile::BoxError;
use redis::aio::ConnectionLike;

const COMPLETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    return redis.call('SET', KEYS[1], ARGV[2], 'PX', 600000) end return false";

/// Loads the script of [`complete`] and returns its hash.
pub(super) async fn load(connection: &mut impl ConnectionLike) -> Result<String, BoxError> {
    Ok(redis::cmd("SCRIPT").arg("LOAD").arg(COMPLETE).query_async(connection).await?)
}

/// Acquires the key if it is new, and tells whether it was.
pub(super) async fn acquire(
    connection: &mut impl ConnectionLike,
    key: &str,
) -> Result<bool, BoxError> {
    let mut set = redis::cmd("SET");
    set.arg(key).arg("processing").arg("NX").arg("GET").arg("PX").arg(30_000);
    let before: Option<String> = set.query_async(connection).await?;
    Ok(before.is_none())
}

pub(super) async fn complete(
    connection: &mut impl ConnectionLike,
    sha: &str,
    key: &str,
) -> Result<(), BoxError> {
    let mut complete = redis::cmd("EVALSHA");
    complete.arg(sha).arg(1).arg(key).arg("processing").arg("done");
    let done: Option<String> = complete.query_async(connection).await?;
    done.map(drop).ok_or_else(|| format!("{key} was not completed").into())
}
