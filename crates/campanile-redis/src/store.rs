//! The store.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{Answer, Command};
use campanile_idempotency::{Store, StoreError};
use futures_util::future::OptionFuture;
use tokio::time::{Instant, timeout_at};

use crate::batch::Batch;
use crate::bucket::Buckets;
use crate::call::MAX_KEYS;
use crate::check::{Witness, check_when_up};
use crate::delivery::Delivery;
use crate::script::{Scripts, Verb};
use crate::topology::Topology;
use crate::wait::{Lanes, Waiting};
use crate::{ConnectError, Finding, RedisConfig};

/// No call takes longer, so that its deadline can be counted.
pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Keeps entries in Redis, version 7.0 or later: in one server, on the primary that sentinels name, or
/// in a cluster. Clones share their connections.
///
/// A batch is a script call for each kind of command in it, in a cluster for each kind and bucket, all
/// sent together.
///
/// # Connections
/// [`connect`](Self::connect) looks at the servers and closes its connections again. The one that the
/// store works with, to each server, is made on the runtime that first needs it. The lock keeper renews
/// over another, on a runtime of its own, so that a blocked runtime of the program delays no renewal. It is
/// replaced when it breaks, when the server on it has become a replica, and when an answer did not
/// come in time; the sentinels are asked for the primary then. While calls are made they are also
/// asked in the background, each second and when a replica that is waited for is late: the old primary
/// of a failover may go on answering, and lose what it answers. A runtime that ends takes its
/// connections with it; the store can be used on another.
///
/// A master of a cluster that does not answer is looked for in the background. Until it is found, or a
/// replica that has taken over, what is for it fails at once, and what is for others does not wait. The
/// call in which that is noticed ends with its timeout.
///
/// # Errors
/// A command that was not answered within the command timeout fails as [`Timeout`], all that the
/// server or the network refuses as [`Unavailable`]. An unknown script, a restarted server and a
/// broken connection show in no error as long as the server is there.
///
/// [`Timeout`]: campanile_idempotency::StoreErrorKind::Timeout
/// [`Unavailable`]: campanile_idempotency::StoreErrorKind::Unavailable
///
/// # Data loss
/// What can be lost is said at the start ([`findings`](Self::findings)). What was lost is told by an
/// event, over each new connection: a warning after a restart or a failover, an error when the last
/// completion that was acknowledged here, or a whole namespace, is gone. Nothing has to be done then:
/// results that are on their way are recorded all the same, locks that are gone are lost and their
/// records tried again, and a completion that is gone runs again when its key comes again.
///
/// # Cancellation
/// A dropped call may have been applied or not, as if it had failed; no other call gets its answer.
#[derive(Clone)]
pub struct RedisStore(Arc<Inner>);

pub(crate) struct Inner {
    topology: Topology,
    pub(crate) scripts: Scripts,
    pub(crate) buckets: Buckets,
    pub(crate) waiting: Option<Waiting>,
    pub(crate) witness: Arc<Witness>,
    command_timeout: Duration,
    findings: Arc<[Finding]>,
}

impl RedisStore {
    /// A store on this server; a URL is enough.
    ///
    /// A server that is not up yet is waited for: nothing listens there, its name is not known, it
    /// is loading its data, or has no primary yet. An event tells so.
    ///
    /// # Errors
    /// When the server is not there within the
    /// [connect timeout](RedisConfig::with_connect_timeout); at once when it refuses the credentials,
    /// is no Redis, or one on which the protocol does not hold: [`RedisConfig::with_safety`]. The
    /// error tells the address that was tried.
    pub async fn connect(config: impl Into<RedisConfig>) -> Result<Self, ConnectError> {
        let config = config.into();
        let topology = config.topology()?;
        let findings = check_when_up(&topology, &config).await?;
        let waiting = config.wait.map(|wait| Waiting::new(wait, Lanes::to(&topology)));
        let witness = Arc::new(Witness::new(topology.cluster().is_some(), config.buckets));
        Ok(Self(Arc::new(Inner {
            topology,
            waiting,
            witness,
            scripts: Scripts::default(),
            buckets: config.buckets,
            command_timeout: config.command_timeout,
            findings: findings.into(),
        })))
    }

    /// Connects, and replaces the text of one script, so that a test can show that it would find a
    /// broken one.
    #[doc(hidden)]
    pub async fn connect_with_script(
        config: impl Into<RedisConfig>,
        verb: Verb,
        text: &'static str,
    ) -> Result<Self, ConnectError> {
        let mut store = Self::connect(config).await?;
        let inner = Arc::get_mut(&mut store.0).expect("it was connected just now");
        inner.scripts.replace(verb, text);
        Ok(store)
    }

    /// What is wrong with the server and was accepted when the store was connected, the worst first:
    /// what could be lost by it, and the setting that mends it. Each was told as an event, too.
    ///
    /// ```
    /// # use campanile_redis::{RedisStore, Severity};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let redis = campanile_test::RedisServer::start()?; // keeps nothing on disk
    /// let store = RedisStore::connect(redis.url()).await?;
    /// assert!(store.findings().iter().any(|finding| finding.severity() == Severity::Loses));
    /// # Ok(())
    /// # }
    /// ```
    pub fn findings(&self) -> &[Finding] {
        &self.0.findings
    }

    /// How many completions were acknowledged although fewer replicas, or disks, had them in time
    /// than [`RedisConfig::with_wait`] or [`RedisConfig::with_wait_aof`] asks for: what they complete
    /// was done, so nothing is gained by holding the record. 0 where nothing is waited for.
    pub fn shortfalls(&self) -> u64 {
        self.0.waiting.as_ref().map_or(0, |waiting| waiting.shortfalls.count())
    }
}

impl Store for RedisStore {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        self.apply_batch(vec![command]).await.pop().expect("one command has one answer")
    }

    async fn apply_batch(&self, commands: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        let Inner { topology, waiting, .. } = &*self.0;
        let waiting = waiting.as_ref().filter(|waiting| waiting.is_for(&commands));
        let limit = self.0.limit(waiting);
        let deadline = Instant::now() + limit;
        let late =
            || StoreError::timeout(format!("Redis at {topology} did not answer within {limit:?}"));
        let Ok(lane) = timeout_at(deadline, OptionFuture::from(waiting.map(Waiting::lane))).await
        else {
            return vec![Err(late()); commands.len()];
        };
        let topology = lane.as_deref().unwrap_or(topology);
        let delivery = Delivery { store: &self.0, topology, commands: &commands };
        let mut batch = Batch::new(delivery);
        // What is not answered by then stays without an answer.
        let _ = timeout_at(deadline, batch.run()).await;
        batch.answers(late)
    }

    /// 64, the most keys of one script call; for a cluster, so many for each bucket, because each is a
    /// call of its own there, and small calls are slow.
    fn max_batch(&self) -> NonZeroUsize {
        let Inner { topology, buckets, .. } = &*self.0;
        let calls = if topology.cluster().is_some() { usize::from(buckets.count()) } else { 1 };
        NonZeroUsize::new(calls * MAX_KEYS).expect("a namespace has a bucket")
    }

    /// A store on the same servers, with connections of its own.
    fn separate(&self) -> Self {
        let Inner { topology, scripts, buckets, waiting, witness, command_timeout, findings } =
            &*self.0;
        let topology = topology.another();
        Self(Arc::new(Inner {
            waiting: waiting.as_ref().map(|waiting| waiting.over(&topology)),
            topology,
            scripts: scripts.clone(),
            buckets: *buckets,
            witness: witness.clone(),
            command_timeout: *command_timeout,
            findings: findings.clone(),
        }))
    }

    /// The command timeout, and that of [`RedisConfig::with_wait`].
    fn longest_call(&self) -> Option<Duration> {
        Some(self.0.limit(self.0.waiting.as_ref()))
    }
}

impl Inner {
    /// How long a call may take, with what it waits for.
    fn limit(&self, waiting: Option<&Waiting>) -> Duration {
        let for_wait = waiting.map_or(Duration::ZERO, Waiting::timeout);
        self.command_timeout.saturating_add(for_wait).min(LONGEST)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("address", &self.0.topology.to_string())
            .field("buckets", &self.0.buckets.count())
            .finish_non_exhaustive()
    }
}
