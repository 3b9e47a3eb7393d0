//! Plants faults, and waits until Prometheus shows them.

mod layer;
mod observing;
mod store;

use std::collections::BTreeSet;
use std::future::{pending, ready};
use std::sync::Mutex;
use std::time::Duration;

use campanile::dead_letter::FloodLimit;
use campanile::policy::OnLocked;
use campanile::postgres::{Inbox, Transaction, migrate};
use campanile::prelude::*;
use campanile::publish::PublisherConfig;
use campanile::{
    Consumer, DeadLetter, LockKeeper, OnGiveUp, Output, PgStore, Publisher, RedisConfig,
    RetryTopics,
};
use campanile_test::{KafkaServer, Message, PgServer, RedisServer};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};
use tokio::time::{sleep, timeout};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

use crate::prometheus::Prometheus;
use crate::workload::{
    Does, Gate, Job, Serving, TIMEOUT, TestService, config, job_key, run_job, service,
};

/// The namespace and the group of the consumer that is disturbed.
const BILLING: &str = "billing";

/// The time to live of locks that the test lets expire.
const SHORT: Duration = Duration::from_secs(3);

/// How often Prometheus is asked.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long records in flight may take at the end.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// The servers, and what Prometheus has shown.
pub(crate) struct Faults {
    pub(crate) prometheus: Prometheus,
    kafka: KafkaServer,
    redis: RedisServer,
    postgres: PgServer,
    gate: Gate,
    /// The series that have risen.
    risen: Mutex<BTreeSet<&'static str>>,
}

/// Series that a fault raises, with their values before it.
struct Rise(Vec<(&'static str, f64)>);

impl Faults {
    pub(crate) fn new(prometheus: Prometheus) -> Self {
        let (kafka, redis, postgres) = std::thread::scope(|scope| {
            let kafka = scope.spawn(|| KafkaServer::start().unwrap());
            let postgres = scope.spawn(|| PgServer::start().unwrap());
            let redis = RedisServer::builder().append_only(true).start().unwrap();
            (kafka.join().unwrap(), redis, postgres.join().unwrap())
        });
        for (topic, partitions) in [
            ("payments", 2),
            ("payments.dead", 1),
            ("floods", 1),
            ("stops", 1),
            ("refunds", 1),
            ("refunds.retry", 1),
            ("changed", 3),
        ] {
            kafka.create_topic(topic, partitions, &[]).unwrap();
        }
        let risen = Mutex::default();
        Self { prometheus, kafka, redis, postgres, gate: Gate::new(), risen }
    }

    /// Returns the series that have risen.
    pub(crate) fn into_risen(self) -> (Prometheus, BTreeSet<&'static str>) {
        (self.prometheus, self.risen.into_inner().unwrap())
    }

    fn value(&self, series: &str) -> f64 {
        self.prometheus.query(&format!("sum({series})")).first().map_or(0.0, |it| it.value)
    }

    /// Notes the values of these series. The fault follows.
    fn rise(&self, series: &[&'static str]) -> Rise {
        Rise(series.iter().map(|&series| (series, self.value(series))).collect())
    }

    /// Waits until each series has been above its value before.
    async fn wait_for(&self, Rise(mut before): Rise) {
        let risen = async {
            while !before.is_empty() {
                before.retain(|&(series, before)| {
                    let has_risen = self.value(series) > before;
                    if has_risen {
                        self.risen.lock().unwrap().insert(series);
                    }
                    !has_risen
                });
                sleep(POLL_INTERVAL).await;
            }
        };
        if timeout(TIMEOUT, risen).await.is_err() {
            panic!("these series have not risen: {before:?}");
        }
    }

    fn produce(&self, topic: &str, partition: i32, job: &Job) {
        self.kafka.producer().produce(job.message(topic, partition)).unwrap();
    }

    async fn store(&self) -> RedisStore {
        let timeout = Duration::from_secs(1);
        let config = RedisConfig::new(self.redis.url()).with_command_timeout(timeout);
        RedisStore::connect(config).await.unwrap()
    }

    /// A process of its own, as the store sees it.
    async fn keeper(&self) -> LockKeeper {
        LockKeeper::new(self.store().await).unwrap()
    }

    /// Runs a command for each entry of a namespace, with the name of its key.
    fn for_each_entry(&self, namespace: &str, command: impl Fn(&[u8]) -> redis::Cmd) {
        let mut connection =
            redis::Client::open(self.redis.url()).unwrap().get_connection().unwrap();
        let pattern = format!("{{{namespace}:*}}*");
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg(pattern).query(&mut connection).unwrap();
        assert!(!keys.is_empty(), "no entry of {namespace}");
        keys.iter().for_each(|key| command(key).exec(&mut connection).unwrap());
    }

    /// Deletes the entries of a namespace, so that all locks are lost.
    fn delete_entries(&self, namespace: &str) {
        self.for_each_entry(namespace, |key| redis::Cmd::del(key));
    }

    fn consumer(&self, group: &str, topic: &str) -> Consumer {
        Consumer::new(self.kafka.consumer_config(group))
            .unwrap()
            .subscribe([topic])
            .with_drain_timeout(DRAIN_TIMEOUT)
    }

    /// Starts a consumer of payments, on a keeper of its own.
    pub(crate) async fn billing(&self) -> Serving {
        let consumer =
            self.consumer(BILLING, "payments").on_give_up(DeadLetter::topic("payments.dead"));
        let keeper = self.keeper().await;
        Serving::start(consumer.serve(decoded(self.service(&keeper, BILLING))))
    }

    fn service(&self, keeper: &LockKeeper, namespace: &str) -> TestService {
        service(IdempotencyLayer::new(keeper, config(namespace), job_key()).unwrap(), &self.gate)
    }

    pub(crate) async fn duplicates(&self) {
        let rise = self.rise(&[
            r#"campanile_duplicates_total{campanile_duplicate_cause="repeat"}"#,
            r#"campanile_duplicates_total{campanile_duplicate_cause="redelivery"}"#,
            r#"campanile_duplicates_total{campanile_duplicate_cause="unknown"}"#,
            r#"campanile_requests_total{campanile_request_outcome="locked"}"#,
            r#"campanile_duplicates_total{campanile_duplicate_cause="other_process"}"#,
        ]);
        let processed = self.rise(&["campanile_consumer_records_total"]);
        self.produce("payments", 0, &Job::new("twice", Does::Succeed));
        self.wait_for(processed).await;
        self.produce("payments", 0, &Job::new("twice", Does::Succeed));
        // Another process runs the key of a record, which is tried again as by a consumer.
        let other = self.service(&self.keeper().await, "direct");
        let job = Job::new("elsewhere", Does::Hold).request();
        let running = tokio::spawn(run_job(other, job.clone()));
        self.gate.wait_until_held(1).await;
        let here = self.service(&self.keeper().await, "direct");
        run_job(here.clone(), job.clone()).await.unwrap_err();
        self.gate.release(1);
        running.await.unwrap().unwrap();
        assert!(run_job(here.clone(), job).await.unwrap().is_duplicate());
        let again = Job::new("elsewhere", Does::Succeed).request();
        assert!(run_job(here, again).await.unwrap().is_duplicate());
        let keeper = self.keeper().await;
        let without = config("direct").with_completed_details(false);
        let layer = IdempotencyLayer::new(&keeper, without, job_key()).unwrap();
        for is_duplicate in [false, true] {
            let job = Job::new("plain", Does::Succeed).request();
            let outcome = run_job(service(layer.clone(), &self.gate), job).await.unwrap();
            assert_eq!(outcome.is_duplicate(), is_duplicate);
        }
        self.wait_for(rise).await;

        let rise = self.rise(&[
            r#"campanile_duplicates_total{campanile_duplicate_cause="local_run"}"#,
            "campanile_lock_wait_duration_seconds_count",
        ]);
        let wait = OnLocked::Wait { at_most: TIMEOUT };
        let keeper = self.keeper().await;
        let layer = IdempotencyLayer::new(&keeper, config("direct"), job_key()).unwrap();
        let service = service(layer.on_locked(wait), &self.gate);
        let first = tokio::spawn(run_job(service.clone(), Job::new("here", Does::Hold).request()));
        self.gate.wait_until_held(1).await;
        let second = service.oneshot(Job::new("here", Does::Hold).request());
        tokio::pin!(second);
        // Polled once, it waits for the first.
        assert!(timeout(Duration::ZERO, &mut second).await.is_err());
        self.gate.release(1);
        first.await.unwrap().unwrap();
        assert!(second.await.unwrap().is_duplicate());
        self.wait_for(rise).await;
    }

    pub(crate) async fn failures(&self) {
        let rise = self.rise(&[
            r#"campanile_requests_total{campanile_request_outcome="attempt_failed"}"#,
            r#"campanile_consumer_retries_total{error_type="attempt_failed"}"#,
            r#"campanile_consumer_dead_letters_total{error_type="decode"}"#,
        ]);
        self.produce("payments", 0, &Job::new("fails", Does::FailOnce));
        self.produce("payments", 0, &Job::new("panics", Does::PanicOnce));
        self.produce("payments", 0, &Job::new("given-up", Does::FailForever));
        let garbage = Message::to("payments").partition(1).payload("garbage");
        self.kafka.producer().produce(garbage).unwrap();
        self.wait_for(rise).await;
    }

    /// Another process takes over the lock of a record whose handler then succeeds.
    pub(crate) async fn lock_taken_over(&self) {
        let rise =
            self.rise(&[r#"campanile_settlements_refused_total{campanile_settlement="complete"}"#]);
        self.produce("payments", 0, &Job::new("taken-over", Does::Hold));
        self.gate.wait_until_held(1).await;
        self.delete_entries(BILLING);
        let other = self.service(&self.keeper().await, BILLING);
        run_job(other, Job::new("taken-over", Does::Succeed).request()).await.unwrap();
        self.gate.release(1);
        self.wait_for(rise).await;
    }

    /// A record waits, and others wait behind it.
    pub(crate) async fn stalled_partition(&self) {
        let rise = self.rise(&["campanile_consumer_oldest_age_seconds"]);
        let gauges = self.rise(&[
            "campanile_consumer_lag",
            "campanile_consumer_buffered_records",
            "campanile_consumer_buffered_size_bytes",
            "campanile_locks_held",
        ]);
        self.produce("payments", 0, &Job::new("stalls", Does::Hold));
        (0..3).for_each(|_| self.produce("payments", 0, &Job::new("waits", Does::Succeed)));
        self.gate.wait_until_held(1).await;
        tokio::join!(self.wait_for(rise), self.wait_for(gauges));
        self.gate.release(1);
    }

    /// Waits until the gauge is 0 again.
    async fn wait_for_zero(&self, gauge: &str) {
        self.wait_until(|| self.value(gauge) == 0.0, gauge).await;
    }

    /// Waits until the series exist, so that the next event is an increase.
    async fn wait_until_scraped(&self, series: &str) {
        self.wait_until(|| !self.prometheus.query(series).is_empty(), series).await;
    }

    async fn wait_until(&self, condition: impl Fn() -> bool, what: &str) {
        let is_met = async {
            while !condition() {
                sleep(POLL_INTERVAL).await;
            }
        };
        timeout(TIMEOUT, is_met).await.unwrap_or_else(|_| panic!("timed out: {what}"));
    }

    /// Records that pause a consumer, stop a partition, or wait in a retry topic.
    pub(crate) async fn policies(&self) {
        let keeper = self.keeper().await;
        let flood =
            self.rise(&[r#"campanile_consumer_paused{campanile_pause_cause="flood_limit"}"#]);
        let stop =
            self.rise(&[r#"campanile_consumer_partitions{campanile_partition_state="stopped"}"#]);
        let defer = self
            .rise(&[r#"campanile_consumer_records_total{campanile_record_outcome="deferred"}"#]);
        let start = |topic: &str, policy: OnGiveUp| {
            let consumer = self.consumer(topic, topic).on_give_up(policy);
            let retries = RetryTopics::new().then("refunds.retry", Duration::from_millis(1));
            let consumer = match topic {
                "refunds" => consumer.with_retry_topics(retries),
                _ => consumer,
            };
            Serving::start(consumer.serve(decoded(self.service(&keeper, topic))))
        };
        let letters = DeadLetter::topic("payments.dead").with_flood_limit(FloodLimit::new(0, 1));
        let floods = start("floods", letters.into());
        let stops = start("stops", OnGiveUp::StopPartition);
        let refunds = start("refunds", OnGiveUp::Skip);
        for topic in ["floods", "stops", "refunds"] {
            self.produce(topic, 0, &Job::new("given-up", Does::FailForever));
        }
        self.produce("refunds", 0, &Job::new("deferred", Does::FailOnce));
        tokio::join!(self.wait_for(flood), self.wait_for(stop), self.wait_for(defer));

        let paused = self.rise(&[r#"campanile_consumer_paused{campanile_pause_cause="handle"}"#]);
        refunds.handle.pause();
        self.wait_for(paused).await;
        refunds.handle.resume();
        let paused =
            self.rise(&[r#"campanile_consumer_partitions{campanile_partition_state="paused"}"#]);
        refunds.handle.pause_topic("refunds");
        self.wait_for(paused).await;
        // One record of `floods` is not finished.
        let unfinished = self
            .rise(&[r#"campanile_consumer_records_total{campanile_record_outcome="unfinished"}"#]);
        tokio::join!(floods.stop(), stops.stop(), refunds.stop());
        self.wait_for(unfinished).await;
    }

    /// The group's offsets are those of an earlier topic, of records that were deleted, and of records that the
    /// brokers have lost.
    pub(crate) async fn log_changes(&self) {
        let rise = self.rise(&[
            r#"campanile_consumer_log_changes_total{campanile_log_change_kind="recreated"}"#,
            r#"campanile_consumer_log_changes_total{campanile_log_change_kind="deleted"}"#,
            r#"campanile_consumer_log_changes_total{campanile_log_change_kind="truncated"}"#,
        ]);
        for partition in 0..3 {
            self.produce("changed", partition, &Job::new("deleted", Does::Succeed));
            self.produce("changed", partition, &Job::new("changed", Does::Succeed));
        }
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset("changed", 1, Offset::Offset(1)).unwrap();
        let admin: AdminClient<_> = self.kafka.consumer_config("changed").create().unwrap();
        admin.delete_records(&offsets, &AdminOptions::new()).await.unwrap();
        offsets.set_partition_offset("changed", 1, Offset::Offset(0)).unwrap();
        offsets.add_partition_offset("changed", 2, Offset::Offset(9)).unwrap();
        let mut recreated = offsets.add_partition("changed", 0);
        recreated.set_offset(Offset::Offset(1)).unwrap();
        recreated.set_metadata("topic-id=AAAAAAAAAAAAAAAAAAAAAQ");
        let group: BaseConsumer = self.kafka.consumer_config("changed").create().unwrap();
        group.commit(&offsets, CommitMode::Sync).unwrap();
        let keeper = self.keeper().await;
        let consumer = self.consumer("changed", "changed");
        let changed = Serving::start(consumer.serve(decoded(self.service(&keeper, "changed"))));
        self.wait_for(rise).await;
        changed.stop().await;
    }

    /// Another consumer joins the group, and leaves it again.
    pub(crate) async fn rebalance(&self, billing: &Serving) {
        let rise = self.rise(&[
            r#"campanile_consumer_rebalances_total{campanile_rebalance_kind="revoked"}"#,
            r#"campanile_consumer_rebalances_total{campanile_rebalance_kind="assigned"}"#,
            r#"campanile_consumer_records_total{campanile_record_outcome="revoked"}"#,
            r#"campanile_requests_total{campanile_request_outcome="dropped"}"#,
        ]);
        for partition in 0..2 {
            let id = format!("revoked-{partition}");
            self.produce("payments", partition, &Job::new(&id, Does::Hold));
        }
        self.gate.wait_until_held(2).await;
        let other = self.billing().await;
        // The record of the partition that has moved.
        self.gate.wait_until_held(1).await;
        self.gate.release(2);
        self.wait_for(rise).await;
        other.stop().await;
        let has_both = || billing.handle.status().partitions.len() == 2;
        self.wait_until(has_both, "both partitions").await;
    }

    /// The brokers are away for longer than the session timeout.
    pub(crate) async fn kafka_outage(&mut self) {
        self.produce("payments", 0, &Job::new("uncommitted", Does::Hold));
        self.gate.wait_until_held(1).await;
        let lost = r#"campanile_consumer_rebalances_total{campanile_rebalance_kind="lost"}"#;
        let rise = self.rise(&[lost]);
        self.kafka.pause().unwrap();
        self.gate.release(1);
        self.wait_for(rise).await;
        self.kafka.resume().unwrap();
        let again = self.rise(&["campanile_consumer_records_total"]);
        self.produce("payments", 0, &Job::new("again", Does::Succeed));
        self.wait_for(again).await;
    }

    pub(crate) async fn publications(&self) {
        let rise = self.rise(&[
            r#"messaging_client_sent_messages_total{error_type="too_large"}"#,
            "campanile_outbox_leader",
            "campanile_outbox_messages",
            "campanile_outbox_oldest_age_seconds",
            "campanile_postgres_unsafe_settings_total",
        ]);
        let small = PublisherConfig::new(self.kafka.bootstrap()).set("message.max.bytes", "2000");
        let large = Output::to("payments.dead").payload(vec![0; 3000]);
        Publisher::new(small).unwrap().oneshot(large).await.unwrap_err();

        migrate(self.postgres.url()).await.unwrap();
        let inbox = Inbox::new(&PgStore::connect(self.postgres.url()).await.unwrap()).unwrap();
        let publish = async |transaction: Transaction| {
            transaction.publish(Output::to("bills").payload("1")).await
        };
        inbox.runner("payments").unwrap().run("payment-1", publish).await.unwrap();
        let ages = "UPDATE campanile.outbox SET written = written - interval '5 minutes'";
        self.postgres.psql(ages).unwrap();
        self.wait_until_scraped("campanile_postgres_unsafe_settings_total").await;
        // The relay opens the next connection.
        self.postgres.psql("ALTER ROLE postgres SET synchronous_commit = off").unwrap();
        let hangs = service_fn(|_: Output| pending::<Result<(), BoxError>>());
        let relay = inbox.relay(hangs, pending::<()>());
        tokio::select! {
            () = self.wait_for(rise) => {}
            _ = relay => panic!("the relay has ended"),
        }
        // The relay that takes over publishes the message.
        let publishes = service_fn(|_: Output| ready(Ok::<_, BoxError>(())));
        inbox.relay(publishes, sleep(Duration::from_millis(200))).await;
    }
}

/// Decodes records.
fn decoded(
    service: TestService,
) -> impl Service<Record, Response = Outcome<()>, Error = BoxError, Future: Send> + Clone + Send {
    ServiceBuilder::new().layer(DecodeLayer::json()).service(service)
}
