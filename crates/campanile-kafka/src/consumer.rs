//! How a consumer is made.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{BoxableError, Classify, ConfigError, Disposition, Record};
use futures_util::future::BoxFuture;
use tower_service::Service;

use crate::budget::Amount;
use crate::config::{Checked, ConsumerConfig, begins_elsewhere};
use crate::dead_letter::{DeadLetters, Targets};
use crate::dispatch::{self, Dispatcher, LET_GO, Timeouts};
use crate::error::ConsumerError;
use crate::flood::FloodGuard;
use crate::given_up::{Fate, GivenUp};
use crate::handle::Gate;
use crate::intake::{Intake, Settings};
use crate::order::Order;
use crate::retention::Retentions;
use crate::retry_topics::{Ladder, RetryTopics, Sources};
use crate::routes::{Routes, Single, Target};
use crate::serve::Serve;
use crate::summary::Summary;
use crate::task::Task;
use crate::transaction::Transactions;
use crate::vitals::Vitals;

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

/// What the dispatcher decides by.
pub(crate) struct Policies {
    pub(crate) order: Order,
    /// How far ahead of a partition's oldest unfinished record others may be begun.
    pub(crate) far: u64,
    /// Whether where a partition begins is committed before anything of it is finished.
    pub(crate) keeps_start: bool,
    pub(crate) max_in_flight: usize,
    pub(crate) given_up: Fate,
    pub(crate) flood_guard: FloodGuard,
    pub(crate) stall: Duration,
    pub(crate) retentions: Retentions,
    pub(crate) targets: Targets,
    pub(crate) ladder: Option<Arc<Ladder>>,
    pub(crate) sources: Sources,
    pub(crate) classifiers: Classifiers,
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
    /// What it takes beyond what it has when it is idle is at most this budget and a quarter, the
    /// queue into which librdkafka prefetches (`queued.max.messages.kbytes`, by default 8 MiB here),
    /// two responses on their way (`fetch.max.bytes`, 2 MiB each), and some 12 MiB of the allocator's
    /// and of the work itself: 64 MiB by default, however many partitions there are and however large
    /// the backlog is. All partitions share the budget and the queue; one more costs some kilobytes of
    /// its own.
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

    /// Serves records to this service. Await what it gives.
    ///
    /// The service needs no `Clone`: the one instance is polled ready with a record in hand, called,
    /// and its futures run as tasks of their own. Its response is not looked at; `Ok` means that the
    /// record is finished. [`Outputs`](crate::Outputs) are sent by
    /// [`serve_transactional`](Self::serve_transactional) only.
    pub fn serve<S>(self, service: S) -> Serve
    where
        S: Service<Record> + Send + 'static,
        S::Error: BoxableError,
        S::Future: Send + 'static,
    {
        self.start(Ok(Single(service)))
    }

    /// Serves the records of several topics, each to the service of its route, and subscribes to
    /// these topics beside those of [`subscribe`](Self::subscribe). Await what it gives.
    ///
    /// Each service is as [`serve`](Self::serve)'s. All share this consumer's settings, its budget and
    /// [`with_max_in_flight`](Self::with_max_in_flight) among them.
    pub fn serve_routes(self, routes: Routes) -> Serve {
        let consumer = self.subscribe(routes.topics());
        consumer.start(routes.checked())
    }

    pub(crate) fn start(self, target: Result<impl Target, ConfigError>) -> Serve {
        let consumer = format!("{self:?}");
        let poll_interval = Duration::from_millis(self.config.max_poll_interval_ms);
        let gate = Gate::new(Vitals::new(poll_interval));
        Serve::new(consumer, gate.handle(), |signal| {
            // A task of its own: on a worker of the runtime it is next to the tasks that it starts,
            // and whoever awaits it may be busy with other things in between.
            Box::pin(async move {
                let target = target.map_err(ConsumerError::Config)?;
                Task::spawn(self.run(target, signal, gate)).join().await
            })
        })
    }

    /// Runs until it is told to end.
    pub(crate) async fn run(
        self,
        service: impl Target,
        signal: BoxFuture<'static, ()>,
        gate: Gate,
    ) -> Result<Summary, ConsumerError> {
        if self.topics.is_empty() {
            let error = ConfigError::new("no topic: call `subscribe` before `serve`");
            return Err(ConsumerError::Config(error));
        }
        let longest = Duration::from_millis(self.config.max_poll_interval_ms / 2);
        let timeouts =
            Timeouts { drain: self.drain_timeout, revoke: self.drain_timeout.min(longest) };
        if self.drain_timeout > longest {
            tracing::warn!(
                drain_timeout = ?self.drain_timeout,
                at_a_revoke = ?longest,
                "records at work have less time to end when their partition is revoked than at a \
                 shutdown: raise `max.poll.interval.ms` to twice the drain's time-out, or lower that"
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
        let sources = Sources::new(&topics);
        let keeps_start = begins_elsewhere(&self.config.client).is_some();
        let intake = Intake::start(Settings {
            client: self.config.client,
            brokers: self.config.brokers,
            topics,
            rungs,
            dead_letter_topics: targets.topics().cloned().collect(),
            budget: self.budget,
            // The dispatcher keeps to its own time-outs; this is for a runtime that does not run.
            revoke_timeout: timeouts.revoke + LET_GO * 2,
            start_timeout: self.start_timeout,
            vitals: gate.vitals().clone(),
            transactions,
        })?;
        let policies = Policies {
            order: self.order,
            far: self.budget.records,
            keeps_start,
            max_in_flight: self.max_in_flight,
            stall: self.stall,
            retentions,
            given_up,
            flood_guard,
            targets,
            ladder,
            sources,
            classifiers: self.classifiers,
        };
        let dispatcher = Dispatcher::new(service, signal, gate, intake, policies, group, timeouts);
        dispatch::serve(dispatcher).await
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

/// The user's classifiers, in their order.
pub(crate) struct Classifiers(Vec<Box<dyn Classify>>);

impl Classify for Classifiers {
    fn classify(&self, error: &(dyn Error + 'static)) -> Option<Disposition> {
        self.0.iter().find_map(|classifier| classifier.classify(error))
    }
}
