//! The approach of tutorials: one message at a time, with a pool checkout for each of its two
//! calls.

use campanile::{BoxError, lock::Clock};
use deadpool_redis::{Config, Runtime};

use super::tutorial::{acquire, complete, load};
use crate::handlers::numbered_key;

const MESSAGES: u64 = 10_000;

/// Measures the messages per second.
pub(super) async fn per_second(url: &str) -> Result<f64, BoxError> {
    let pool = Config::from_url(url).create_pool(Some(Runtime::Tokio1))?;
    let sha = load(&mut pool.get().await?).await?;
    let clock = Clock::boot();
    let start = clock.now();
    for number in 0..MESSAGES {
        let key = numbered_key(number);
        if !acquire(&mut pool.get().await?, &key).await? {
            return Err(format!("{key} is not new").into());
        }
        complete(&mut pool.get().await?, &sha, &key).await?;
    }
    Ok(MESSAGES as f64 / (clock.now() - start).as_secs_f64())
}
