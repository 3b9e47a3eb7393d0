//! The configuration of a consumer.

mod transactional;

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{BoxableError, Classify, ConfigError, Record};
use tower_service::Service;
use tracing::Level;

use campanile_driver::epilogue::GiveUpAction;
use campanile_driver::source::Amount;
use campanile_driver::{
    ConsumerError, Driver, DriverConfig, ProcessingOrder, Router, Routes, Serve, SkipAt,
    SourceContext,
};

use crate::config::{CheckedConfig, ConsumerConfig, non_earliest_reset, uses_newer_protocol};
use crate::epilogue::{
    DeadLetterTargets, DeadLetters, OnGiveUp, Publications, RetryPublisher, RetryTopics,
    SourceTopics,
};
use crate::log::LogLimit;
use crate::source::{self, KafkaSource};
use crate::transaction::Transactions;

/// Serves Kafka records to a tower service, and commits the offsets of finished records.
///
/// By default, the records of one partition are processed in order, one at a time, and partitions
/// concurrently; [`ProcessingOrder`] has alternatives. See the [crate's documentation](crate) for an example.
#[must_use = "a consumer does nothing until it serves a service"]
pub struct Consumer {
    config: CheckedConfig,
    driver: DriverConfig,
    topics: Vec<String>,
    start_timeout: Duration,
    given_up: OnGiveUp,
    retry_topics: Option<RetryTopics>,
    transactions: Option<Transactions>,
}

impl Consumer {
    /// Creates a consumer with these settings. The consumer does not connect before it serves.
    ///
    /// # Errors
    /// Fails if the brokers or the group are missing, if a setting is unknown to librdkafka or has no
    /// valid value, or if automatic commits are enabled, since the driver commits by itself.
    pub fn new(config: impl Into<ConsumerConfig>) -> Result<Self, ConfigError> {
        let config = config.into().checked()?;
        Ok(Self {
            driver: DriverConfig::new(config.group.as_str()),
            config,
            topics: Vec::new(),
            start_timeout: Duration::from_secs(30),
            given_up: OnGiveUp::default(),
            retry_topics: None,
            transactions: None,
        })
    }

    /// Subscribes to these topics, in addition to those of earlier calls. A name that begins with `^` is
    /// a regular expression over the names of topics.
    ///
    /// By default, librdkafka evaluates the expression, which may match a part of a name: `^orders`
    /// also matches `orders.eu`. With `group.protocol=consumer`, the brokers evaluate it, with the
    /// syntax of RE2/J, and it must match the whole name: write `^orders.*`.
    ///
    /// librdkafka discovers new matching topics, and new partitions of a topic, every
    /// `topic.metadata.refresh.interval.ms`, by default 5 minutes. They are read from their start, since
    /// `auto.offset.reset` is `earliest` by default.
    pub fn subscribe<T: Into<String>>(mut self, topics: impl IntoIterator<Item = T>) -> Self {
        self.topics.extend(topics.into_iter().map(Into::into));
        self
    }

    /// Sets which records are processed one after the other. Default: [`ProcessingOrder::by_partition`].
    ///
    /// A record's handler starts after the one before it was processed. With an idempotency layer, the
    /// service is called slightly earlier: the record's lock is acquired while the store records the
    /// outcome of the record before it. Middleware in front of the layer sees that call.
    pub fn with_order(mut self, order: ProcessingOrder) -> Self {
        self.driver.order = order;
        self
    }

    /// Sets how many records may be in flight at the same time, over all partitions; at least 1.
    ///
    /// With [`ProcessingOrder::by_partition`], each of them belongs to another partition. Otherwise, if there are
    /// several partitions, each has at most half of the records in flight, so that a partition with slow
    /// handlers does not hold up the others.
    ///
    /// Default: 256, enough to keep a store's batches full.
    pub fn with_max_in_flight(mut self, n: usize) -> Self {
        self.driver.max_in_flight = n.max(1);
        self
    }

    /// Sets how much is kept in memory: the number and the bytes of records that were read and are not
    /// finished. Above this budget, partitions are paused; librdkafka's prefetched records are not
    /// included. If there are several partitions, each holds at most half of the budget. When stalled
    /// partitions together have filled it, the others share another quarter. A single record may exceed
    /// the budget.
    ///
    /// Default: 20 000 records and 32 MiB, because a larger budget does not increase throughput.
    ///
    /// # Memory usage of the process
    /// A busy consumer needs at most this much more memory than an idle one:
    ///
    /// * this budget and a quarter of it,
    /// * two responses in flight (`fetch.max.bytes`, 2 MiB each),
    /// * some 12 MiB for the allocator and the work itself,
    /// * the 16 queues into which librdkafka prefetches, which the partitions share. Each holds
    ///   `queued.max.messages.kbytes`, by default 128 KiB here, or one record or one uncompressed batch
    ///   of a producer if that is larger.
    ///
    /// With records and batches of up to 512 KiB this adds up to 64 MiB by default, with those of 1 MiB
    /// to 72 MiB, regardless of the number of partitions and the size of the backlog. Each additional
    /// partition costs some kilobytes of its own.
    ///
    /// In [transactions](Self::serve_transactional), the outputs of records count until they are
    /// committed. While outputs alone fill the budget, only the oldest unfinished record of each
    /// partition is dispatched. The process then needs at most the same amount once more, plus the
    /// outputs of the records in flight.
    pub fn with_budget(mut self, records: usize, bytes: usize) -> Self {
        let count = |n: usize| (n as u64).max(1);
        self.driver.budget = Amount { records: count(records), bytes: count(bytes) };
        self
    }

    /// Sets how long records in flight may take to finish at a shutdown, and when their partition is
    /// revoked. A record that takes longer is dropped and its lock released; the record is delivered
    /// again, to this or another consumer.
    ///
    /// Default: 10 s, longer than most handlers take and well below the 30 s after which orchestrators
    /// kill a process. At a revoke, the timeout is at most half of `max.poll.interval.ms`, because the
    /// whole group waits.
    pub fn with_drain_timeout(mut self, timeout: Duration) -> Self {
        self.driver.drain_timeout = timeout;
        self
    }

    /// Sets how long to wait at startup until a broker responds. In the meantime a warning says what is
    /// missing; after the timeout, serving ends with an error.
    ///
    /// Serving also waits for as long, and at least 2 min, while the brokers refuse it in the place of a
    /// killed member, as they do with `group.protocol=consumer` until that member's session ends.
    ///
    /// Default: 30 s, because brokers that are restarted together with the consumer take several seconds.
    pub fn with_start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }

    /// Sets the time after which a stalled partition is logged, at level WARN. A partition is stalled if
    /// its oldest unfinished record has not changed for this time, while other records could be
    /// processed. The event says what the record waits for: its handler, a backoff, a lock held by
    /// another owner, the store, or a resume. The event is repeated each time the stall has lasted twice
    /// as long.
    ///
    /// A partition that delivers no records is not logged: only the brokers know whether it has any, and
    /// its [lag](crate::PartitionStatus::lag) is merely an estimate.
    ///
    /// Default: 60 s, because most handlers have finished by then, and a lock that a dead process has
    /// left expires after 30 s by default. Set more than the slowest handler needs.
    pub fn with_stall_warning(mut self, after: Duration) -> Self {
        self.driver.stall_warning = after;
        self
    }

    /// Sets the level of the span `record`, which each attempt has.
    ///
    /// Default: DEBUG, as in tower-http's `TraceLayer`, because an enabled span for each record is
    /// expensive. Set INFO to get these spans from a subscriber that keeps level INFO.
    pub fn with_span_level(mut self, level: Level) -> Self {
        self.driver.span_level = level;
        self
    }

    /// Sets what happens to a record that has used up its attempts, or cannot be processed at all: a
    /// [`DeadLetter`](crate::DeadLetter) topic, or another [`OnGiveUp`]. Default: [`OnGiveUp::Stop`].
    pub fn on_give_up(mut self, policy: impl Into<OnGiveUp>) -> Self {
        self.given_up = policy.into();
        self
    }

    /// Skips the record at these coordinates, in addition to those of earlier calls: the way past one
    /// record that stops the consumer each time it starts. Take the coordinates from the field
    /// `record` of the ERROR event, or from [`ConsumerError::Stopped`]; they parse from the text of
    /// either. Append `#` and the id of the topic, which `kafka-topics.sh --describe` prints, so that
    /// no record of a later topic with the same name is skipped.
    ///
    /// When the record is received, it is not passed to the service, and its key's entry is neither
    /// read nor changed, so this works for any record, even one that does not decode. Its offset is
    /// committed after those before it, and an event at level WARN says so. With
    /// [`serve_transactional`](Self::serve_transactional), the record has no outputs. No other record
    /// is affected: another record of the same key finds the entry as the skipped record has left it,
    /// perhaps without attempts. If the record was published to a [retry topic](RetryTopics), the
    /// coordinates are those of the copy.
    ///
    /// Remove the call once the record has passed. It has no effect then, unless the group's offset
    /// is reset. In a topic with another id than the named one, it skips nothing, and an event at WARN says
    /// so. For the seconds until the consumer knows that a topic was recreated, its records have the id of
    /// the old one; nothing is committed for it in that time. Without an id, that is only known for a topic that was recreated since the group's last commit:
    /// once the partition is assigned again, the record of the new topic is skipped.
    ///
    /// ```
    /// # use campanile_core::BoxError;
    /// # use campanile_kafka::{Consumer, ConsumerConfig};
    /// # fn configured() -> Result<(), BoxError> {
    /// let mut consumer = Consumer::new(ConsumerConfig::new("localhost:9092", "billing"))?;
    /// // such as `SKIP_AT=payments/3@42#hC4cGqLwTGOlWjzZ9DPcdQ`
    /// if let Ok(at) = std::env::var("SKIP_AT") {
    ///     consumer = consumer.skip_at(at.parse()?);
    /// }
    /// # drop(consumer);
    /// # Ok(())
    /// # }
    /// ```
    pub fn skip_at(mut self, at: SkipAt) -> Self {
        self.driver.skip_at.push(at);
        self
    }

    /// Sets the retry topics, in which records wait for their next attempt without holding up the records
    /// behind them. **Records of a key can be reordered.** Default: none; a record to retry holds up its
    /// partition.
    pub fn with_retry_topics(mut self, topics: RetryTopics) -> Self {
        self.retry_topics = Some(topics);
        self
    }

    /// Adds a classifier for errors that do not come from the idempotency layer: errors of a stack
    /// without the layer, or of middleware around it. Classifiers are asked in the order in which they
    /// were added: the first one that returns a disposition takes precedence over those added later, as
    /// in [`IdempotencyLayer::with_classifier`](campanile_idempotency::IdempotencyLayer::with_classifier).
    ///
    /// Classifiers run on the driver's thread, and so does `Display` of the errors. They must not
    /// block: no record is received, started or committed in the meantime.
    ///
    /// Default: [`Defaults`](campanile_idempotency::Defaults), which retries unknown errors after a
    /// backoff of 1 s, doubling up to 5 min, with full jitter. This backoff exists in memory only: only
    /// the layer counts attempts.
    pub fn with_classifier(mut self, classifier: impl Classify) -> Self {
        self.driver.classifiers.push(classifier);
        self
    }

    /// Serves records to this service. Await the returned [`Serve`].
    ///
    /// Each record gets a clone of the service, as in axum: the clone is polled ready and called in a
    /// task of the runtime that awaits the [`Serve`]. The response is ignored; `Ok` means that the record
    /// is finished. Only [`serve_transactional`](Self::serve_transactional) sends
    /// [`Outputs`](crate::Outputs).
    ///
    /// A concurrency limit in the service, such as tower's `ConcurrencyLimit`, is shared by the clones.
    /// Records that wait for the service to be ready do not count as
    /// [in flight](Self::with_max_in_flight).
    pub fn serve<S>(self, service: S) -> Serve
    where
        S: Service<Record> + Clone + Send + 'static,
        S::Response: 'static,
        S::Error: BoxableError,
        S::Future: Send + 'static,
    {
        self.start(Ok(Router::single(service)))
    }

    /// Serves the records of several topics, each to the service of its route, and subscribes to these
    /// topics in addition to those of [`subscribe`](Self::subscribe). Await the returned [`Serve`].
    ///
    /// Each service is called as in [`serve`](Self::serve). All services share this consumer's settings,
    /// including the budget and [`with_max_in_flight`](Self::with_max_in_flight).
    pub fn serve_routes(self, routes: Routes) -> Serve {
        let consumer = self.subscribe(routes.topics());
        consumer.start(routes.checked())
    }

    fn start(self, router: Result<Router, ConfigError>) -> Serve {
        let max_poll_interval = Duration::from_millis(self.config.max_poll_interval_ms);
        Serve::new(format!("{self:?}"), max_poll_interval, || {
            self.prepare(router.map_err(ConsumerError::Config)?)
        })
    }

    /// Checks the settings, and creates the parts of the driver.
    fn prepare(
        self,
        router: Router,
    ) -> Result<
        Driver<impl FnOnce(&SourceContext) -> Result<KafkaSource, ConsumerError>>,
        ConsumerError,
    > {
        if self.topics.is_empty() {
            let error = ConfigError::new("no topic: call `subscribe` before `serve`");
            return Err(ConsumerError::Config(error));
        }
        let mut driver = self.driver;
        let max_revoke_timeout = Duration::from_millis(self.config.max_poll_interval_ms / 2);
        if driver.drain_timeout > max_revoke_timeout {
            tracing::warn!(
                drain_timeout = ?driver.drain_timeout,
                at_a_revoke = ?max_revoke_timeout,
                "records in flight have less time to finish when their partition is revoked than \
                 at a shutdown: raise `max.poll.interval.ms` to twice the drain timeout, or lower \
                 the drain timeout"
            );
        }
        driver.revoke_timeout = driver.drain_timeout.min(max_revoke_timeout);
        let transactions = self.transactions.map(|t| t.checked(&self.config.client));
        let transactions = transactions.transpose().map_err(ConsumerError::Config)?;
        let mut dead_letter_targets = DeadLetterTargets::default();
        let retry_publisher =
            self.retry_topics.map(|topics| RetryPublisher::new(topics, &self.config.client));
        let retry_publisher =
            retry_publisher.transpose().map_err(ConsumerError::Config)?.map(Arc::new);
        let retry_topics = retry_publisher
            .as_ref()
            .map(|retry_publisher| retry_publisher.topics().clone())
            .unwrap_or_default();
        // librdkafka refuses to subscribe to a topic that is named twice.
        let mut topics = self.topics;
        let mut names = HashSet::new();
        topics.retain(|topic| names.insert(topic.clone()));
        for topic in retry_topics.names() {
            if topics.iter().any(|consumed| **consumed == **topic) {
                let text = format!("`{topic}` is a retry topic: leave it out of `subscribe`");
                return Err(ConsumerError::Config(ConfigError::new(text)));
            }
            dead_letter_targets.add_retry_topic(topic);
        }
        let letters;
        (driver.give_up, letters) = match self.given_up {
            OnGiveUp::Stop => (GiveUpAction::Stop, None),
            OnGiveUp::StopPartition => (GiveUpAction::StopPartition, None),
            OnGiveUp::Skip => (GiveUpAction::Skip, None),
            OnGiveUp::DeadLetter(policy) => {
                driver.flood_limit = policy.flood_limit;
                let letters = DeadLetters::new(policy, &self.config.client, &self.config.group);
                let letters = Arc::new(letters.map_err(ConsumerError::Config)?);
                // The topics of a regular expression are known only when they are assigned.
                for topic in topics.iter().filter(|topic| !topic.starts_with('^')) {
                    let added = dead_letter_targets.add(&letters, &topic.as_str().into());
                    added.map_err(ConsumerError::Config)?;
                }
                (GiveUpAction::HandOver, Some(letters))
            }
        };
        topics.extend(retry_topics.names().map(|topic| topic.to_string()));
        if let Some(settings) = &transactions {
            driver.commit_interval = settings.interval;
            driver.has_sinks = true;
        }
        driver.commits_start_offset = non_earliest_reset(&self.config.client).is_some();
        let source_topics = SourceTopics::new(&topics, uses_newer_protocol(&self.config.client));
        let dead_letter_topics = dead_letter_targets.topics().cloned().collect();
        driver.epilogue = Arc::new(Publications {
            letters,
            targets: Mutex::new(dead_letter_targets),
            retry_publisher,
            source_topics,
        });
        Ok(Driver::new(driver, router, move |context| {
            source::start(&source::Settings {
                context: context.clone(),
                client: self.config.client,
                brokers: self.config.brokers,
                topics,
                retry_topics,
                dead_letter_topics,
                start_timeout: self.start_timeout,
                log_limit: LogLimit::default(),
                transactions,
            })
        }))
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
