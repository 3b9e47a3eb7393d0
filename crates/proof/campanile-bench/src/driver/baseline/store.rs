//! Claims with `SET NX PX`, and completes and releases with scripts, over one multiplexed connection.

use campanile::record::Coordinates;
use campanile::{BoxError, Observer, RedisStore};
use rdkafka::Message;
use redis::aio::ConnectionManager;
use redis::{
    AsyncCommands, Client, ExistenceCheck, RedisResult, Script, ScriptInvocation, SetExpiry,
    SetOptions,
};

use super::backoff::Backoff;
use crate::driver::task::Check;

const CLAIM_MS: u64 = 30_000;
const RETENTION_MS: u64 = 86_400_000;

/// Retries each failed call until Redis answers. The connection reconnects by itself.
pub(super) struct Store {
    connection: ConnectionManager,
    check: Check,
    complete: Script,
    release: Script,
    observer: Option<Observer>,
}

/// A claimed key. Its owner is unique, so that what arrives late for one claim does not change a
/// later one.
pub(super) struct Claim {
    key: String,
    owner: String,
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
            complete: Script::new(include_str!("complete.lua")),
            release: Script::new(include_str!("release.lua")),
            observer,
        })
    }

    /// Claims the key of a record that is to be handled. Returns `None` for a duplicate.
    pub(super) async fn claim(&self, key: &str) -> Option<Claim> {
        let owner = format!("PROCESSING:{:032x}", fastrand::u128(..));
        let claim = Claim { key: format!("idem:{key}"), owner };
        let expiry = match self.check {
            Check::Claim | Check::ObservedClaim => RETENTION_MS,
            Check::ClaimAndCompletion => CLAIM_MS,
        };
        // Replies with the previous value.
        let options = SetOptions::default()
            .conditional_set(ExistenceCheck::NX)
            .get(true)
            .with_expiration(SetExpiry::PX(expiry));
        let mut connection = self.connection.clone();
        let mut backoff = Backoff::default();
        loop {
            let previous: RedisResult<Option<String>> =
                connection.set_options(&claim.key, &claim.owner, options.clone()).await;
            match previous {
                Ok(None) => return Some(claim),
                // The reply to an earlier call was lost.
                Ok(Some(state)) if state == claim.owner => return Some(claim),
                Ok(Some(state)) if self.is_duplicate(&state) => return None,
                // The key is claimed by another record, or was by a process that was killed.
                Ok(Some(_)) => {}
                Err(error) => eprintln!("by hand: Redis: {error}; retrying"),
            }
            backoff.wait().await;
        }
    }

    fn is_duplicate(&self, state: &str) -> bool {
        match self.check {
            Check::Claim | Check::ObservedClaim => true,
            Check::ClaimAndCompletion => state == "COMPLETED",
        }
    }

    /// Runs the handler of a claimed record.
    pub(super) async fn handle(
        &self,
        key: &str,
        message: &impl Message,
        handler: impl Future<Output = Result<(), BoxError>>,
    ) -> Result<(), BoxError> {
        let Some(observer) = &self.observer else { return handler.await };
        let (topic, partition, offset) = (message.topic(), message.partition(), message.offset());
        let at = Coordinates { topic: topic.into(), partition, offset };
        observer.run(key, at, || handler).await
    }

    /// Completes the key of a handled record. If another owner has claimed it meanwhile, that owner
    /// completes it.
    pub(super) async fn complete(&self, claim: &Claim) {
        if !matches!(self.check, Check::ClaimAndCompletion) {
            return;
        }
        let mut call = self.complete.key(&claim.key);
        if !self.invoke(call.arg(&claim.owner).arg(RETENTION_MS)).await {
            eprintln!("by hand: the claim of {} expired while its handler ran", claim.key);
        }
    }

    /// Releases the claim of a record whose handler has failed.
    pub(super) async fn release(&self, claim: &Claim) {
        let mut call = self.release.key(&claim.key);
        self.invoke(call.arg(&claim.owner)).await;
    }

    async fn invoke(&self, call: &ScriptInvocation<'_>) -> bool {
        let mut connection = self.connection.clone();
        let mut backoff = Backoff::default();
        loop {
            match call.invoke_async(&mut connection).await {
                Ok(reply) => return reply,
                Err(error) => eprintln!("by hand: Redis: {error}; retrying"),
            }
            backoff.wait().await;
        }
    }
}
