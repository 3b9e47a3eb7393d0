//! The Redis store.

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
use crate::check::{DataLossDetector, SettingsWatch, check_when_up};
use crate::router::Router;
use crate::script::{Scripts, Verb};
use crate::topology::Topology;
use crate::wait::{ConnectionPool, WaitState};
use crate::{ConnectError, Finding, RedisConfig};

/// The upper limit of every call, so that computing its deadline cannot overflow.
pub(crate) const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// Keeps entries in Redis 7.0 or later: in a single server, on the primary that sentinels name, or
/// in a cluster. Clones share their connections.
///
/// A batch takes one script call for each kind of command in it; in a cluster, for each kind and
/// bucket. All calls are sent together.
///
/// # Connections
/// [`connect`](Self::connect) inspects the servers and closes its connections again. The connection
/// that the store uses for each server is opened on the runtime that first needs it. The lock
/// keeper renews over another connection, on a runtime of its own, so that a blocked application
/// runtime delays no renewal.
///
/// A connection is replaced when it breaks, when its server has become a replica, and when an
/// answer does not arrive in time; the sentinels are then asked for the primary. While calls are
/// made, the sentinels are also asked in the background, once a second and when a replica that is
/// waited for is late: the old primary of a failover may keep answering, and lose what it
/// acknowledges. A runtime that shuts down closes its connections; the store can then be used on
/// another runtime.
///
/// A master of a cluster that does not answer is checked in the background. Until it answers, or a
/// replica has taken over, commands for it fail at once, and commands for other masters do not
/// wait. The call that detects the outage ends with its timeout.
///
/// # Errors
/// A command that is not answered within the command timeout fails as [`Timeout`]. Everything that
/// the server or the network refuses fails as [`Unavailable`]. A script that is not cached, a
/// server restart and a broken connection cause no error as long as the server is available.
///
/// [`Timeout`]: campanile_idempotency::StoreErrorKind::Timeout
/// [`Unavailable`]: campanile_idempotency::StoreErrorKind::Unavailable
///
/// # Data loss
/// [`findings`](Self::findings) lists what the server could lose. Over each new connection, the
/// store checks what it has lost and logs it: a warning after a restart or a failover, an error if
/// the last completion acknowledged to this store, or a whole namespace, is gone. The metric
/// `campanile.redis.data_losses` counts the errors. Without a cluster, a namespace is also looked up
/// every 10 s while it is used, because `FLUSHALL` breaks no connection. In a cluster, a namespace is
/// looked up when the cluster has changed. Only a store that has used the namespace before the loss
/// can report it.
///
/// The settings of each server are looked at over each new connection and every second. What has
/// become unsafe is logged and counted (`campanile.redis.unsafe_settings`). With [`Safety::Refuse`], acquires
/// and steps then fail as [`Unavailable`] until it is corrected.
///
/// [`Safety::Refuse`]: crate::Safety::Refuse
///
/// Results in flight are recorded nevertheless, owners of missing locks lose them and their records
/// are retried, and a record with a missing completion runs again when its key is delivered again.
///
/// # Cancellation
/// A dropped call may or may not have been applied, like a failed one. Its answer never goes to
/// another call.
#[derive(Clone)]
pub struct RedisStore(pub(crate) Arc<StoreInner>);

pub(crate) struct StoreInner {
    topology: Topology,
    pub(crate) scripts: Scripts,
    pub(crate) buckets: Buckets,
    pub(crate) wait_state: Option<WaitState>,
    pub(crate) loss_detector: Arc<DataLossDetector>,
    pub(crate) watch: Arc<SettingsWatch>,
    command_timeout: Duration,
    findings: Arc<[Finding]>,
}

impl RedisStore {
    /// Connects to the server; a URL is enough.
    ///
    /// Waits for a server that is not up yet: nothing listens at the address, its name cannot be
    /// resolved, it is loading its data, or it has no primary yet. The wait is logged.
    ///
    /// # Errors
    /// Fails if the server is not available within the connect timeout, see
    /// [`RedisConfig::with_connect_timeout`]. Fails at once if the server rejects the credentials,
    /// is not Redis, is one on which the protocol does not hold, see
    /// [`RedisConfig::with_safety`], or if a setting is out of its bounds. The error shows the
    /// address that was tried.
    pub async fn connect(config: impl Into<RedisConfig>) -> Result<Self, ConnectError> {
        let config = config.into();
        let buckets = config.check().map_err(ConnectError::Config)?;
        let topology = config.topology()?;
        let watch = SettingsWatch::new(config.clone());
        let findings = check_when_up(&topology, &config, &watch).await?;
        // Connections that the check has left open belong to this runtime.
        let topology = topology.with_new_connections();
        let wait_state = config
            .durability
            .map(|durability| WaitState::new(durability, ConnectionPool::new(&topology)));
        let loss_detector = Arc::new(DataLossDetector::new(topology.cluster().is_some(), buckets));
        Ok(Self(Arc::new(StoreInner {
            topology,
            wait_state,
            loss_detector,
            watch,
            scripts: Scripts::default(),
            buckets,
            command_timeout: config.command_timeout,
            findings: findings.into(),
        })))
    }

    /// Connects and replaces the texts of scripts, so that a test can run broken or former scripts.
    #[doc(hidden)]
    pub async fn connect_with_scripts(
        config: impl Into<RedisConfig>,
        texts: &[(Verb, &'static str)],
    ) -> Result<Self, ConnectError> {
        let mut store = Self::connect(config).await?;
        let inner = Arc::get_mut(&mut store.0).expect("the new store has no clones");
        for &(verb, text) in texts {
            inner.scripts.replace(verb, text);
        }
        Ok(store)
    }

    /// The problems with the servers that were accepted when the store connected, worst first: what
    /// each could lose, and the setting that fixes it. Each has also been logged.
    ///
    /// ```
    /// # use campanile_redis::{RedisStore, Severity};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let redis = campanile_test::RedisServer::start()?; // keeps nothing on disk
    /// let store = RedisStore::connect(redis.url()).await?;
    /// assert!(store.findings().iter().any(|finding| finding.severity() == Severity::DataLoss));
    /// # Ok(())
    /// # }
    /// ```
    pub fn findings(&self) -> &[Finding] {
        &self.0.findings
    }

    /// Counts the completions that were acknowledged although fewer replicas or disks had them in
    /// time than [`RedisConfig::with_wait`] or [`RedisConfig::with_wait_aof`] requires. They are
    /// acknowledged because their work is done, so holding back the record would gain nothing.
    /// Always 0 for a store that does not wait.
    pub fn shortfalls(&self) -> u64 {
        self.0.wait_state.as_ref().map_or(0, |wait_state| wait_state.shortfalls.count())
    }
}

impl Store for RedisStore {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        self.apply_batch(vec![command]).await.pop().expect("one command has one answer")
    }

    async fn apply_batch(&self, commands: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        let StoreInner { topology, wait_state, .. } = &*self.0;
        let wait_state = wait_state.as_ref().filter(|wait_state| wait_state.applies_to(&commands));
        let limit = self.0.call_timeout(wait_state);
        let deadline = Instant::now() + limit;
        let timed_out = || self.0.timed_out(limit);
        let Ok(connections) =
            timeout_at(deadline, OptionFuture::from(wait_state.map(WaitState::connections))).await
        else {
            return vec![Err(timed_out()); commands.len()];
        };
        let topology = connections.as_deref().unwrap_or(topology);
        let router = Router { store: &self.0, topology, commands: &commands };
        let mut batch = Batch::new(router);
        // Commands that have no answer by the deadline are left without one.
        let _ = timeout_at(deadline, batch.run()).await;
        batch.take_answers(timed_out)
    }

    /// At most 64 commands, the most keys of one script call. In a cluster, 64 for each bucket,
    /// because each bucket takes a call of its own there, and small calls are slow.
    fn max_batch(&self) -> NonZeroUsize {
        let StoreInner { topology, buckets, .. } = &*self.0;
        let calls = if topology.cluster().is_some() { usize::from(buckets.count()) } else { 1 };
        NonZeroUsize::new(calls * MAX_KEYS).expect("a namespace has at least one bucket")
    }

    /// Creates a store on the same servers, with connections of its own.
    fn for_renewals(&self) -> Self {
        let StoreInner {
            topology,
            scripts,
            buckets,
            wait_state,
            loss_detector,
            watch,
            command_timeout,
            findings,
        } = &*self.0;
        let topology = topology.with_new_connections();
        Self(Arc::new(StoreInner {
            wait_state: wait_state.as_ref().map(|wait_state| wait_state.with_topology(&topology)),
            topology,
            scripts: scripts.clone(),
            buckets: *buckets,
            loss_detector: loss_detector.clone(),
            watch: watch.clone(),
            command_timeout: *command_timeout,
            findings: findings.clone(),
        }))
    }

    /// The command timeout plus the timeout of [`RedisConfig::with_wait`].
    fn max_call_duration(&self) -> Option<Duration> {
        Some(self.0.call_timeout(self.0.wait_state.as_ref()))
    }
}

impl StoreInner {
    /// Runs a call of a tool, within the command timeout.
    pub(crate) async fn call<T>(
        &self,
        call: impl AsyncFnOnce(Router<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let limit = self.call_timeout(None);
        let router = Router { store: self, topology: &self.topology, commands: &[] };
        let answer = tokio::time::timeout(limit, call(router)).await;
        answer.unwrap_or_else(|_| Err(self.timed_out(limit)))
    }

    fn timed_out(&self, limit: Duration) -> StoreError {
        let Self { topology, .. } = self;
        StoreError::timeout(format!("Redis at {topology} did not answer within {limit:?}"))
    }

    /// The time limit of a call, including its wait for replicas.
    fn call_timeout(&self, wait_state: Option<&WaitState>) -> Duration {
        let wait_timeout = wait_state.map_or(Duration::ZERO, WaitState::timeout);
        self.command_timeout.saturating_add(wait_timeout).min(MAX_TIMEOUT)
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
