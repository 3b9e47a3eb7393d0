//! Claims with `SET NX PX` and completes with a script, over one multiplexed connection.

use campanile::BoxError;
use redis::aio::ConnectionManager;
use redis::{AsyncCommands, Client, ExistenceCheck, Script, SetExpiry, SetOptions};

const CLAIM_MS: u64 = 30_000;
const RETENTION_MS: u64 = 86_400_000;

pub(super) struct Store {
    connection: ConnectionManager,
    owner: String,
    complete: Script,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    Acquired,
    /// Claimed by another owner.
    Busy,
    Completed,
}

impl Store {
    pub(super) async fn connect(url: &str) -> Result<Self, BoxError> {
        Ok(Self {
            connection: Client::open(url)?.get_connection_manager().await?,
            owner: format!("PROCESSING:worker-{}", std::process::id()),
            complete: Script::new(include_str!("complete.lua")),
        })
    }

    pub(super) async fn claim(&self, key: &str) -> Result<Claim, BoxError> {
        let (mut connection, key) = (self.connection.clone(), format!("idem:{key}"));
        let options = SetOptions::default()
            .conditional_set(ExistenceCheck::NX)
            .with_expiration(SetExpiry::PX(CLAIM_MS));
        let set: Option<String> = connection.set_options(&key, &self.owner, options).await?;
        if set.is_some() {
            return Ok(Claim::Acquired);
        }
        let state: Option<String> = connection.get(&key).await?;
        Ok(match state.as_deref() {
            Some("COMPLETED") => Claim::Completed,
            _ => Claim::Busy,
        })
    }

    /// # Errors
    /// Also fails if the claim was lost.
    pub(super) async fn complete(&self, key: &str) -> Result<(), BoxError> {
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
