//! How a consumer is made.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{BoxableError, Classify, ConfigError, Record};
use tower_service::Service;

use crate::config::{Checked, ConsumerConfig, begins_elsewhere};
use crate::dead_letter::{DeadLetters, Targets};
use crate::driver::{self, Amount, Control, Services, Switch, Usage, Vitals};
use crate::error::ConsumerError;
use crate::flood::FloodGuard;
use crate::given_up::{Fate, GivenUp};
use crate::kafka::{self};
use crate::order::Order;
use crate::policies::{Classifiers, Policies};
use crate::retention::Retentions;
use crate::retry_topics::{Ladder, RetryTopics, Sources};
use crate::routes::{Router, Routes, ServiceRoute};
use crate::serve::Serve;
use crate::thread::Prepared;
use crate::transaction::Transactions;

/// How often changed offsets are committed, without transactions: what a crash replays at most, as
/// duplicates.
const COMMIT_INTERVAL: Duration = Duration::from_millis(200);

/// Feeds records into a tower service, and commits the offsets of those that are finished.
///
/// By default the records of one partition are processed in their order, one at a time; partitions
/// side by side. [`Order`] has other ways. See the [crate's documentation](crate) for an example.
pub struct Consumer {
    config: Checked,
    topics: Vec<String>,
    budget: Amount,
    drain_timeout: Duration,
    start_timeout: Duration,
    given_up: GivenUp,
    retry_topics: Option<RetryTopics>,
    order: Order,
    max_in_flight: usize,
    stall: Duration,
    checks_retention: bool,
    classifiers: Classifiers,
    pub(crate) transactions: Option<Transactions>,
}

impl Consumer {
    /// A consumer with these settings. Nothing is connected before it serves.
    ///
    /// # Errors
    /// If there are no brokers or no group, if a setting is unknown to librdkafka or has no valid
    /// value, or if automatic commits are on: the driver commits by itself.
    pub fn new(config: impl Into<ConsumerConfig>) -> Result<Self, ConfigError> {
        Ok(Self {
            config: config.into().checked()?,
            topics: Vec::new(),
            budget: Amount { records: 20_000, bytes: 32 * 1024 * 1024 },
            drain_timeout: Duration::from_secs(10),
            start_timeout: Duration::from_secs(30),
            given_up: GivenUp::default(),
            retry_topics: None,
            order: Order::default(),
            max_in_flight: 256,
            stall: Duration::from_secs(60),
            checks_retention: true,
            classifiers: Classifiers(Vec::new()),
            transactions: None,
        })
    }

    /// Subscribes to these topics, beside those of former calls. One that begins with `^` is a
    /// regular expression over the topics' names.
    ///
    /// A topic that is created later and matches, and partitions that a topic is given, are found when
    /// librdkafka looks next: every `topic.metadata.refresh.interval.ms`, by default 5 minutes. They are
    /// read from their start, as `auto.offset.reset` is `earliest` by default.
    pub fn subscribe<T: Into<String>>(mut self, topics: impl IntoIterator<Item = T>) -> Self {
        self.topics.extend(topics.into_iter().map(Into::into));
        self
    }

    /// Which records are processed one after the other. Default: [`Order::by_partition`].
    ///
    /// A record's handler starts when the one before it is processed. Under an idempotency layer, the
    /// service is called for it a little earlier: while the store records the outcome of the one
    /// before, its lock is acquired. Middleware in front of the layer sees that call.
    pub fn with_order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// How many records may be at work at the same time, over all partitions; at least 1. By
    /// partition, each is of another one. Else at most half of them are of one of several partitions, so
    /// that one whose handlers are slow holds up no other. Default: 256, enough to keep a store's batches
    /// full.
    pub fn with_max_in_flight(mut self, n: usize) -> Self {
        self.max_in_flight = n.max(1);
        self
    }

    /// How much may be kept in memory: records with their bytes that were read and are not finished.
    /// Beyond it, partitions are paused; what librdkafka prefetches comes on top. One of several
    /// partitions holds at most half of it. When some that stand still have filled it together, the
    /// others share another quarter. A single record may exceed it.
    ///
    /// Default: 20 000 records and 32 MiB, because more brings no throughput.
    ///
    /// # The process's memory
    /// What it takes beyond what it has when it is idle is at most this budget and a quarter, two
    /// responses on their way (`fetch.max.bytes`, 2 MiB each), some 12 MiB of the allocator's and of the
    /// work itself, and the 16 queues into which librdkafka prefetches, which partitions share: each has
    /// `queued.max.messages.kbytes`, by default 128 KiB here, or one record or uncompressed batch of a
    /// producer's if that is larger. With records and batches of up to 512 KiB that is 64 MiB by default,
    /// with those of 1 MiB 72 MiB, however many partitions there are and however large the backlog is. One
    /// more partition costs some kilobytes of its own.
    ///
    /// In [transactions](Self::serve_transactional), what records give out counts until it is committed.
    /// Where that alone fills the budget, a partition's oldest unfinished record is dispatched and none
    /// behind it, until there is room again. So it takes as much once more at most, and what the records
    /// at work give out then.
    pub fn with_budget(mut self, records: usize, bytes: usize) -> Self {
        let count = |n: usize| (n as u64).max(1);
        self.budget = Amount { records: count(records), bytes: count(bytes) };
        self
    }

    /// How long records at work may take to end, at a shutdown and when their partition is revoked.
    /// What takes longer is dropped, its lock released; it comes again, here or elsewhere.
    ///
    /// Default: 10 s, longer than most handlers and well below the 30 s after which orchestrators
    /// kill. At a revoke it is at most half of `max.poll.interval.ms`: the whole group waits.
    pub fn with_drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// How long the start may take until a broker has answered. Until then a warning says what is
    /// missing; afterwards serving ends with an error. Default: 30 s, because brokers that are
    /// restarted together with the consumer take some seconds.
    pub fn with_start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }

    /// After which time it is told, by an event at level WARN, that a partition stands still: that its
    /// oldest unfinished record has been that for so long, while others could be processed. The event
    /// says what that waits for: its handler, a back-off, a lock that somebody else holds, the store,
    /// a resume. It comes again whenever that time has doubled. A partition from which no record comes
    /// is not told: whether there is one is the brokers' knowledge, and its
    /// [lag](crate::PartitionStatus::lag) only a guess at it.
    ///
    /// Default: 60 s, because by then most handlers have ended, and a lock of the default 30 s that a
    /// dead process has left is over. Give it more than the slowest handler needs.
    pub fn with_stall_warning(mut self, after: Duration) -> Self {
        self.stall = after;
        self
    }

    /// Does not compare for how long a topic's records and their entries are kept.
    ///
    /// Otherwise each topic is looked at once (`DescribeConfigs`), when the first of its records that
    /// came through an idempotency layer is finished: where the topic keeps records for longer (its
    /// `retention.ms`; for ever, if it is compacted) than the layer keeps COMPLETED entries
    /// (`with_retention`), an event at level WARN tells both. A record that is read again when its
    /// entry is gone runs again, as after a reset of the group's offset, or when that was lost.
    /// Nothing is refused, and a user who may not look is told so at INFO.
    pub fn without_retention_check(mut self) -> Self {
        self.checks_retention = false;
        self
    }

    /// What happens to a record whose attempts are used up, or that cannot be tried: a
    /// [`DeadLetter`](crate::DeadLetter) topic, or another [`GivenUp`]. Default: [`GivenUp::Stop`].
    pub fn with_given_up(mut self, policy: impl Into<GivenUp>) -> Self {
        self.given_up = policy.into();
        self
    }

    /// Where records wait that are to be tried again, so that those behind them go on. **They give up
    /// the order of a key.** Default: none; such a record holds up its partition.
    pub fn with_retry_topics(mut self, topics: RetryTopics) -> Self {
        self.retry_topics = Some(topics);
        self
    }

    /// Decides about errors that are not the idempotency layer's: of a stack without it, or from
    /// outside of it. Several are asked in the order in which they were added.
    ///
    /// Default: [`Defaults`](campanile_idempotency::Defaults), which retries what it does not know,
    /// after a back-off of 1 s, doubling up to 5 min, with full jitter. That back-off is kept in
    /// memory only: attempts are counted by the layer alone.
    pub fn with_classifier(mut self, classifier: impl Classify) -> Self {
        self.classifiers.0.push(Box::new(classifier));
        self
    }

    /// Serves records to this service. Await what it returns.
    ///
    /// Each record gets a clone of the service, as in axum: the clone is polled ready and called in a task
    /// of the runtime that awaits this. Its response is not looked at; `Ok` means that the record is
    /// finished. [`Outputs`](crate::Outputs) are sent by
    /// [`serve_transactional`](Self::serve_transactional) only.
    ///
    /// What limits concurrency in the service, such as tower's `ConcurrencyLimit`, is shared by its
    /// clones. Records that wait until it is ready take no place of those
    /// [in flight](Self::with_max_in_flight).
    pub fn serve<S>(self, service: S) -> Serve
    where
        S: Service<Record> + Clone + Send + 'static,
        S::Response: 'static,
        S::Error: BoxableError,
        S::Future: Send + 'static,
    {
        self.start(Ok(Router::single(ServiceRoute::new(service, None))))
    }

    /// Serves the records of several topics, each to the service of its route, and subscribes to
    /// these topics beside those of [`subscribe`](Self::subscribe). Await what it returns.
    ///
    /// Each service is as [`serve`](Self::serve)'s. All share this consumer's settings, its budget and
    /// [`with_max_in_flight`](Self::with_max_in_flight) among them.
    pub fn serve_routes(self, routes: Routes) -> Serve {
        let consumer = self.subscribe(routes.topics());
        consumer.start(routes.checked())
    }

    pub(crate) fn start(self, router: Result<Router, ConfigError>) -> Serve {
        let shown = format!("{self:?}");
        let poll_interval = Duration::from_millis(self.config.max_poll_interval_ms);
        let switch = Switch::new(Vitals::new(poll_interval));
        let control = switch.control().clone();
        Serve::new(shown, control.clone(), move |runtime| {
            let router = router.map_err(ConsumerError::Config)?;
            self.prepare(router, runtime, &control)?.spawn(switch)
        })
    }

    /// Checks the settings, and makes what serves.
    fn prepare(
        self,
        router: Router,
        runtime: tokio::runtime::Handle,
        control: &Arc<Control>,
    ) -> Result<Prepared, ConsumerError> {
        if self.topics.is_empty() {
            let error = ConfigError::new("no topic: call `subscribe` before `serve`");
            return Err(ConsumerError::Config(error));
        }
        let longest = Duration::from_millis(self.config.max_poll_interval_ms / 2);
        if self.drain_timeout > longest {
            tracing::warn!(
                drain_timeout = ?self.drain_timeout,
                at_a_revoke = ?longest,
                "records in flight have less time to end when their partition is revoked than at a \
                 shutdown: raise `max.poll.interval.ms` to twice the drain timeout, or lower that"
            );
        }
        let group = self.config.group;
        let flood_guard = match &self.given_up {
            GivenUp::DeadLetter(policy) => policy.flood_guard,
            _ => FloodGuard::off(),
        };
        let retentions = match self.checks_retention {
            true => Retentions::new(&self.config.client),
            false => Retentions::off(),
        };
        let transactions = self.transactions.map(|t| t.checked(&self.config.client));
        let transactions = transactions.transpose().map_err(ConsumerError::Config)?;
        let mut targets = Targets::default();
        let ladder = self.retry_topics.map(|topics| Ladder::new(topics, &self.config.client));
        let ladder = ladder.transpose().map_err(ConsumerError::Config)?.map(Arc::new);
        let rungs = ladder.as_ref().map(|ladder| ladder.rungs().clone()).unwrap_or_default();
        let mut topics = self.topics;
        for topic in rungs.topics() {
            if topics.iter().any(|consumed| **consumed == **topic) {
                let text = format!("`{topic}` is a retry topic: leave it out of `subscribe`");
                return Err(ConsumerError::Config(ConfigError::new(text)));
            }
            targets.add_retries(topic);
        }
        let given_up = match self.given_up {
            GivenUp::Stop => Fate::Stop,
            GivenUp::Skip => Fate::Skip,
            GivenUp::DeadLetter(policy) => {
                let letters = DeadLetters::new(policy, &self.config.client, &group);
                let letters = Arc::new(letters.map_err(ConsumerError::Config)?);
                // What a regular expression stands for is seen when it is assigned.
                for topic in topics.iter().filter(|topic| !topic.starts_with('^')) {
                    let added = targets.add(&letters, &topic.as_str().into());
                    added.map_err(ConsumerError::Config)?;
                }
                Fate::DeadLetter(letters)
            }
        };
        topics.extend(rungs.topics().map(|topic| topic.to_string()));
        let total: Arc<Usage> = Arc::default();
        let driver = driver::Settings {
            budget: self.budget,
            total: total.clone(),
            drain_timeout: self.drain_timeout,
            revoke_timeout: self.drain_timeout.min(longest),
            commit_interval: transactions.as_ref().map_or(COMMIT_INTERVAL, |terms| terms.interval),
            has_outputs: transactions.is_some(),
        };
        let policies = Policies {
            order: Arc::new(self.order),
            far: self.budget.records,
            commits_start: begins_elsewhere(&self.config.client).is_some(),
            max_in_flight: self.max_in_flight,
            stall: self.stall,
            retentions,
            given_up,
            flood_guard,
            ladder,
            sources: Sources::new(&topics),
            classifiers: self.classifiers,
            targets,
        };
        let source = kafka::Settings {
            client: self.config.client,
            brokers: self.config.brokers,
            topics,
            rungs,
            dead_letter_topics: policies.targets.topics().cloned().collect(),
            start_timeout: self.start_timeout,
            total,
            control: control.clone(),
            transactions,
        };
        let services = Services { router, runtime, group: group.into() };
        Ok(Prepared { source, policies, services, driver })
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("brokers", &self.config.brokers)
            .field("group", &self.config.group)
            .field("topics", &self.topics)
            .finish_non_exhaustive()
    }
}
