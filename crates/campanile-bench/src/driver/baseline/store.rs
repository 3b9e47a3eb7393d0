//! Claims with `SET NX PX` and completes with a script, over one multiplexed connection.

use std::time::Duration;

use campanile::record::Coordinates;
use campanile::{BoxError, Observer, RedisStore};
use redis::aio::ConnectionManager;
use redis::{AsyncCommands, Client, ExistenceCheck, Script, SetExpiry, SetOptions};

use crate::driver::task::Check;

const CLAIM_MS: u64 = 30_000;
const RETENTION_MS: u64 = 86_400_000;
/// The pauses before a claimed key is read again.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Store {
    connection: ConnectionManager,
    check: Check,
    owner: String,
    complete: Script,
    observer: Option<Observer>,
}

impl Store {
    pub(super) async fn connect(url: &str, check: Check) -> Result<Self, BoxError> {
        let observer = match check {
            Check::ObservedClaim => {
                Some(Observer::new(RedisStore::connect(url).await?, "observed")?)
            }
            Check::Claim | Check::ClaimAndCompletion => None,
        };
        Ok(Self {
            connection: Client::open(url)?.get_connection_manager().await?,
            check,
            owner: format!("PROCESSING:worker-{}", std::process::id()),
            complete: Script::new(include_str!("complete.lua")),
            observer,
        })
    }

    /// Claims a key. Returns whether its record is to be handled, and otherwise is a duplicate.
    pub(super) async fn claim(&self, key: &str) -> Result<bool, BoxError> {
        let (mut connection, key) = (self.connection.clone(), format!("idem:{key}"));
        let expiry = match self.check {
            Check::Claim | Check::ObservedClaim => RETENTION_MS,
            Check::ClaimAndCompletion => CLAIM_MS,
        };
        let options = SetOptions::default()
            .conditional_set(ExistenceCheck::NX)
            .with_expiration(SetExpiry::PX(expiry));
        let mut pause = FIRST_PAUSE;
        loop {
            let set: Option<String> =
                connection.set_options(&key, &self.owner, options.clone()).await?;
            if set.is_some() {
                return Ok(true);
            }
            if !matches!(self.check, Check::ClaimAndCompletion) {
                return Ok(false);
            }
            let state: Option<String> = connection.get(&key).await?;
            if state.as_deref() == Some("COMPLETED") {
                return Ok(false);
            }
            // The key is claimed by another record, or was by a process that was killed.
            tokio::time::sleep(pause).await;
            pause = LONGEST_PAUSE.min(2 * pause);
        }
    }

    /// Runs the handler of a claimed record.
    pub(super) async fn handle(
        &self,
        key: &str,
        at: Coordinates,
        handler: impl Future<Output = Result<(), BoxError>>,
    ) -> Result<(), BoxError> {
        match &self.observer {
            Some(observer) => observer.run(key, at, || handler).await,
            None => handler.await,
        }
    }

    /// # Errors
    /// Also fails if the claim was lost.
    pub(super) async fn complete(&self, key: &str) -> Result<(), BoxError> {
        if !matches!(self.check, Check::ClaimAndCompletion) {
            return Ok(());
        }
        let owned: bool = self
            .complete
            .key(format!("idem:{key}"))
            .arg(&self.owner)
            .arg(RETENTION_MS)
            .invoke_async(&mut self.connection.clone())
            .await?;
        owned.then_some(()).ok_or_else(|| "the claim was lost".into())
    }
}
