//! What tutorials show: the same two calls, one message at a time, each with a checkout of its own.

use campanile::{BoxError, Clock};
use deadpool_redis::{Config, Runtime};

const MESSAGES: u64 = 10_000;

const COMPLETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    return redis.call('SET', KEYS[1], ARGV[2], 'PX', 600000) end return false";

/// Messages a second.
pub(crate) async fn per_second(url: &str) -> Result<f64, BoxError> {
    let pool = Config::from_url(url).create_pool(Some(Runtime::Tokio1))?;
    let sha: String =
        redis::cmd("SCRIPT").arg("LOAD").arg(COMPLETE).query_async(&mut pool.get().await?).await?;
    let clock = Clock::boot();
    let start = clock.now();
    for number in 0..MESSAGES {
        let key = format!("a-key-of-57-bytes-as-they-are-found-with-users/{number:010}");
        let _: Option<String> = redis::cmd("SET")
            .arg(&key)
            .arg("processing")
            .arg("NX")
            .arg("GET")
            .arg("PX")
            .arg(30_000)
            .query_async(&mut pool.get().await?)
            .await?;
        let done: Option<String> = redis::cmd("EVALSHA")
            .arg(&sha)
            .arg(1)
            .arg(&key)
            .arg("processing")
            .arg("done")
            .query_async(&mut pool.get().await?)
            .await?;
        if done.is_none() {
            return Err(format!("message {number} was not completed").into());
        }
    }
    Ok(MESSAGES as f64 / (clock.now() - start).as_secs_f64())
}
