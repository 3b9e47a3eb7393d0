//! The metrics of the layer, its keeper and its store, on paused time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use campanile::error::permanent;
use campanile::policy::{OnExhausted, OnLocked, OnMissingKey};
use campanile::record::Timestamp;
use campanile::store::{Answer, Command, Reply, Store, StoreError};
use campanile::{
    Backoff, BoxError, IdempotencyConfig, IdempotencyError, IdempotencyKey, IdempotencyLayer,
    KeyExtractor, LockKeeper, MemoryStore, Outcome, Record, Request, Runner, key,
};
use campanile_test::TestClock;
use campanile_test::faults::{Fault, FaultyStore};
use metrics_exporter_prometheus::PrometheusRecorder;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tower::util::BoxCloneService;
use tower::{Layer, ServiceExt, service_fn};

use crate::scrape::{Scrape, recorder};

type TestLayer = IdempotencyLayer<key::Key<key::Header>>;
type TestService = BoxCloneService<Request<()>, Outcome<()>, BoxError>;
type Answered = Result<Outcome<()>, BoxError>;

const HOUR: Duration = Duration::from_secs(3600);

/// A process with its keeper. The processes of a test share a store and a recorder.
struct Process {
    store: FaultyStore<MemoryStore>,
    keeper: LockKeeper,
    /// The background of the keeper.
    task: JoinHandle<()>,
    recorder: Arc<PrometheusRecorder>,
    clock: TestClock,
    /// How far the store's clock is ahead, in seconds.
    ahead: Arc<AtomicU64>,
    scrape: Scrape,
}

impl Process {
    fn new() -> Self {
        let (recorder, clock) = (Arc::new(recorder()), TestClock::new());
        let scrape = Scrape(recorder.handle());
        let ahead = Arc::new(AtomicU64::new(0));
        let (now, offset) = (clock.store_clock(), ahead.clone());
        let memory = MemoryStore::with_clock(move || {
            now() + Duration::from_secs(offset.load(Ordering::Relaxed))
        });
        Self::on(memory, recorder, clock, ahead, scrape)
    }

    fn other(&self) -> Self {
        let (recorder, clock) = (self.recorder.clone(), self.clock.clone());
        let memory = self.store.inner().clone();
        Self::on(memory, recorder, clock, self.ahead.clone(), self.scrape.clone())
    }

    fn on(
        memory: MemoryStore,
        recorder: Arc<PrometheusRecorder>,
        clock: TestClock,
        ahead: Arc<AtomicU64>,
        scrape: Scrape,
    ) -> Self {
        let store = FaultyStore::new(memory);
        let pair = || LockKeeper::pair(store.clone(), clock.keeper_clock());
        let (keeper, task) = metrics::with_local_recorder(&*recorder, pair);
        let task = tokio::spawn(task);
        Self { store, keeper, task, recorder, clock, ahead, scrape }
    }

    fn layer(&self) -> TestLayer {
        self.layer_with_key(key::header("id"))
    }

    fn layer_with_key<E: Send + Sync + 'static>(&self, key: E) -> IdempotencyLayer<E> {
        let second = Duration::from_secs(1);
        let backoff = Backoff::new(second, second).unwrap();
        let config = IdempotencyConfig::new("payments").with_max_attempts(2).with_backoff(backoff);
        let layer = || IdempotencyLayer::new(&self.keeper, config, key).unwrap();
        metrics::with_local_recorder(&*self.recorder, layer)
    }

    /// Checks the number of requests with this outcome.
    fn assert_outcome(&self, outcome: &str, expected: f64) {
        let labels = [("campanile_namespace", "payments"), ("campanile_request_outcome", outcome)];
        self.scrape.assert("campanile_requests_total", &labels, expected);
    }

    /// Lets all locks expire in the store, without the keeper's knowledge.
    fn expire_locks(&self) {
        self.ahead.store(3600, Ordering::Relaxed);
    }
}

/// Creates the service of a layer, with a handler that does what the record's header `do` says.
fn service<E>(layer: IdempotencyLayer<E>) -> TestService
where
    E: KeyExtractor<Request<()>> + Send + Sync + 'static,
{
    BoxCloneService::new(layer.layer(service_fn(async |request: Request<()>| {
        match request.record().headers().get_str("do") {
            Some("fail") => Err(BoxError::from("busy")),
            Some("permanent") => Err(permanent("card expired").into()),
            Some("hang") => std::future::pending().await,
            Some("wait") => {
                sleep(Duration::from_secs(1)).await;
                Ok(())
            }
            _ => Ok(()),
        }
    })))
}

fn request(id: &str, what: &str) -> Request<()> {
    let record = Record::builder("payments", 0, 0).header("do", what.to_owned()).payload("100");
    let record = if id.is_empty() { record } else { record.header("id", id.to_owned()) };
    Request::new(record.build(), ())
}

async fn call(service: &TestService, id: &str, what: &str) -> Answered {
    service.clone().oneshot(request(id, what)).await
}

/// Starts a call, and waits until it has done what it can.
async fn start(service: &TestService, id: &str, what: &str) -> JoinHandle<Answered> {
    let call = tokio::spawn(service.clone().oneshot(request(id, what)));
    sleep(Duration::from_millis(10)).await;
    call
}

#[tokio::test(start_paused = true)]
async fn outcomes_without_an_error_are_counted() {
    let process = Process::new();
    let layer = process.layer().on_missing_key(OnMissingKey::PassThrough);
    let service = service(layer.on_exhausted(OnExhausted::GiveUp));
    call(&service, "a", "ok").await.unwrap();
    call(&service, "a", "ok").await.unwrap();
    call(&service, "b", "permanent").await.unwrap();
    call(&service, "b", "ok").await.unwrap();
    call(&service, "", "ok").await.unwrap();
    process.assert_outcome("processed", 1.0);
    process.assert_outcome("duplicate", 1.0);
    process.assert_outcome("given_up", 2.0);
    process.assert_outcome("without_lock", 1.0);
    call(&service, "", "fail").await.unwrap_err();
    process.assert_outcome("service_error", 1.0);
    let scrape = &process.scrape;
    scrape.assert("campanile_attempts_total", &[("campanile_namespace", "payments")], 2.0);
    let missing_key = [("campanile_unguarded_cause", "missing_key")];
    scrape.assert("campanile_unguarded_runs_total", &missing_key, 2.0);
}

#[tokio::test(start_paused = true)]
async fn outcomes_with_an_error_are_counted() {
    let process = Process::new();
    let service_of = service(process.layer());
    call(&service_of, "", "ok").await.unwrap_err();
    process.assert_outcome("missing_key", 1.0);

    call(&service_of, "a", "fail").await.unwrap_err();
    call(&service_of, "a", "fail").await.unwrap_err();
    process.assert_outcome("attempt_failed", 1.0);
    process.assert_outcome("backing_off", 1.0);

    // The last attempt fails, and the error that has the lock is dropped.
    sleep(Duration::from_secs(2)).await;
    call(&service_of, "a", "fail").await.unwrap_err();
    sleep(Duration::from_secs(2)).await;
    call(&service_of, "a", "ok").await.unwrap_err();
    process.assert_outcome("exhausted", 1.0);

    let running = start(&service_of, "b", "hang").await;
    call(&service_of, "b", "ok").await.unwrap_err();
    process.assert_outcome("locked", 1.0);
    running.abort();
    running.await.unwrap_err();
    process.assert_outcome("dropped", 1.0);

    let invalid = |_: &Request<()>| Err::<Option<IdempotencyKey>, _>(BoxError::from("no hex"));
    call(&service(process.layer_with_key(key::from_fn(invalid))), "c", "ok").await.unwrap_err();
    process.assert_outcome("invalid_key", 1.0);

    let by_action = key::header("id").fingerprint_by(|request: &Request<()>, parts| {
        parts.update(request.record().headers().get_str("do").unwrap_or_default());
    });
    let service_of = service(process.layer_with_key(by_action));
    call(&service_of, "d", "ok").await.unwrap();
    call(&service_of, "d", "another").await.unwrap_err();
    process.assert_outcome("mismatch", 1.0);

    let _ = process.keeper.shutdown(HOUR).await;
    call(&service_of, "e", "ok").await.unwrap_err();
    process.assert_outcome("shutting_down", 1.0);
}

#[tokio::test(start_paused = true)]
async fn duplicates_are_counted_by_cause() {
    let process = Process::new();
    let other = process.other();
    let wait = OnLocked::Wait { at_most: HOUR };
    let here = service(process.layer().on_locked(wait));
    let there = service(other.layer().on_locked(wait));
    let running = start(&here, "a", "wait").await;
    let (local, remote) = tokio::join!(call(&here, "a", "ok"), call(&there, "a", "ok"));
    assert!(running.await.unwrap().is_ok() && local.unwrap().is_duplicate());
    assert!(remote.unwrap().is_duplicate() && call(&there, "a", "ok").await.is_ok());
    let scrape = &process.scrape;
    for cause in ["unknown", "local_run", "other_process"] {
        scrape.assert("campanile_duplicates_total", &[("campanile_duplicate_cause", cause)], 1.0);
    }
    let waits = scrape.value("campanile_lock_wait_duration_seconds_count", &[]);
    assert!(waits >= 2.0, "{waits}");
}

#[tokio::test(start_paused = true)]
async fn duplicates_of_a_completed_key_are_counted_by_record() {
    let process = Process::new();
    let config = IdempotencyConfig::new("payments").with_completed_details(true);
    let layer = || IdempotencyLayer::new(&process.keeper, config, key::header("id")).unwrap();
    let detailed = service(metrics::with_local_recorder(&*process.recorder, layer));
    let plain = service(process.layer());
    let record = |offset, id| Record::builder("payments", 0, offset).header("id", id);
    let later = Timestamp::CreateTime(UNIX_EPOCH + HOUR * 24 * 365 * 200);
    for (service, record, cause) in [
        (&detailed, record(0, "a"), None),
        (&detailed, record(0, "a"), Some("redelivery")),
        (&detailed, record(1, "a"), Some("repeat")),
        (&plain, record(0, "b"), None),
        (&plain, record(0, "b"), Some("unknown")),
        (&plain, record(1, "b").timestamp(later), Some("repeat")),
    ] {
        let value = |cause| {
            let labels = [("campanile_duplicate_cause", cause)];
            process.scrape.value("campanile_duplicates_total", &labels)
        };
        let before = cause.map(value);
        let answer = service.clone().oneshot(Request::new(record.build(), ())).await.unwrap();
        assert_eq!(answer.is_duplicate(), cause.is_some());
        assert_eq!(cause.map(value), before.map(|before| before + 1.0), "{cause:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn record_locked_elsewhere_is_an_other_process_duplicate() {
    let process = Process::new();
    let other = process.other();
    let running = start(&service(process.layer()), "a", "wait").await;
    let there = service(other.layer());
    // As the consumer retries the record.
    let record = request("a", "ok");
    let locked = there.clone().oneshot(record.clone()).await.unwrap_err();
    assert!(IdempotencyError::find(&*locked).is_some_and(IdempotencyError::is_contention));
    running.await.unwrap().unwrap();
    assert!(there.oneshot(record).await.unwrap().is_duplicate());
    let elsewhere = [("campanile_duplicate_cause", "other_process")];
    process.scrape.assert("campanile_duplicates_total", &elsewhere, 1.0);
}

#[tokio::test(start_paused = true)]
async fn function_that_waited_for_another_process_is_its_duplicate() {
    let process = Process::new();
    let other = process.other();
    let running = start(&service(process.layer()), "a", "wait").await;
    // A function has no record that would know of the wait.
    let runner = Runner::from(other.layer().on_locked(OnLocked::Wait { at_most: HOUR }));
    assert!(runner.run("a", async |_| Ok::<_, BoxError>(())).await.unwrap().is_duplicate());
    running.await.unwrap().unwrap();
    let elsewhere = [("campanile_duplicate_cause", "other_process")];
    process.scrape.assert("campanile_duplicates_total", &elsewhere, 1.0);
}

#[tokio::test(start_paused = true)]
async fn lost_locks_are_counted_by_cause() {
    let process = Process::new();
    let service = service(process.layer());
    let (scrape, lost) = (&process.scrape, "campanile_locks_lost_total");
    process.store.inject_always_of("renew", Fault::Refuse);
    call(&service, "a", "hang").await.unwrap_err();
    scrape.assert(lost, &[("campanile_lock_loss_cause", "expired")], 1.0);
    process.store.heal();

    call(&service, "b", "hang").await.unwrap_err();
    scrape.assert(lost, &[("campanile_lock_loss_cause", "max_hold")], 1.0);

    let running = start(&service, "c", "hang").await;
    process.expire_locks();
    call(&self::service(process.other().layer()), "c", "ok").await.unwrap();
    running.await.unwrap().unwrap_err();
    scrape.assert(lost, &[("campanile_lock_loss_cause", "superseded")], 1.0);
    process.assert_outcome("lock_lost", 3.0);
    scrape.assert(lost, &[], 3.0);
}

#[tokio::test(start_paused = true)]
async fn refused_completion_raises_the_alarm() {
    let process = Process::new();
    let running = start(&service(process.layer()), "a", "wait").await;
    process.expire_locks();
    call(&service(process.other().layer()), "a", "ok").await.unwrap();
    running.await.unwrap().unwrap_err();
    let refused = "campanile_settlements_refused_total";
    process.scrape.assert(refused, &[("campanile_settlement", "complete")], 1.0);
    process.scrape.assert(refused, &[], 1.0);
}

#[tokio::test(start_paused = true)]
async fn unrecorded_completion_shows_until_it_is_recorded() {
    let process = Process::new();
    let (scrape, service) = (&process.scrape, service(process.layer()));
    let (unrecorded, held) = ("campanile_completions_unrecorded", "campanile_locks_held");
    process.store.inject_always_of("complete", Fault::Refuse);
    let running = start(&service, "a", "ok").await;
    scrape.assert(unrecorded, &[("campanile_namespace", "payments")], 1.0);
    scrape.assert(held, &[("campanile_namespace", "payments")], 1.0);
    process.store.heal();
    running.await.unwrap().unwrap();
    scrape.assert(unrecorded, &[], 0.0);
    scrape.assert(held, &[], 0.0);
    let unavailable =
        scrape.value("campanile_store_errors_total", &[("error_type", "unavailable")]);
    assert!(unavailable >= 1.0, "{unavailable}");
}

#[tokio::test(start_paused = true)]
async fn other_settlements_are_not_unrecorded_completions() {
    let process = Process::new();
    let (scrape, service) = (&process.scrape, service(process.layer()));
    let unrecorded = "campanile_completions_unrecorded";
    call(&service, "a", "ok").await.unwrap();
    scrape.assert(unrecorded, &[], 0.0);
    process.store.inject_always_of("fail", Fault::Refuse);
    let running = start(&service, "b", "fail").await;
    scrape.assert(unrecorded, &[], 0.0);
    process.store.heal();
    running.await.unwrap().unwrap_err();
    scrape.assert(unrecorded, &[], 0.0);
}

#[tokio::test(start_paused = true)]
async fn completions_are_no_longer_unrecorded_after_their_keepers_end() {
    let process = Process::new();
    let (scrape, service) = (&process.scrape, service(process.layer()));
    let (unrecorded, held) = ("campanile_completions_unrecorded", "campanile_locks_held");
    process.store.inject_always_of("fail", Fault::Refuse);
    process.store.inject_always_of("complete", Fault::Refuse);
    let failing = start(&service, "a", "fail").await;
    let pending = start(&service, "b", "ok").await;
    process.store.inject_next_of("complete", Fault::Hang);
    let unanswered = start(&service, "c", "ok").await;
    scrape.assert(unrecorded, &[], 1.0);
    scrape.assert(held, &[], 3.0);
    process.task.abort();
    for call in [failing, pending, unanswered] {
        call.await.unwrap().unwrap_err();
    }
    scrape.assert(unrecorded, &[], 0.0);
    scrape.assert(held, &[], 0.0);
}

#[tokio::test(start_paused = true)]
async fn store_calls_are_measured_by_operation() {
    let process = Process::new();
    let service = service(process.layer());
    let slow = Fault::Slow(Duration::from_millis(20));
    process.store.inject_always(slow);
    let calls = ["a", "b", "c"].map(|id| call(&service, id, "ok"));
    futures_join(calls).await;
    let running = start(&service, "d", "hang").await;
    sleep(Duration::from_secs(15)).await;
    running.abort();
    let scrape = &process.scrape;
    for (operation, at_least) in [("acquire", 2.0), ("settle", 1.0), ("renew", 1.0)] {
        let labels = [("campanile_store_operation", operation)];
        let count = scrape.value("campanile_store_call_duration_seconds_count", &labels);
        let sum = scrape.value("campanile_store_call_duration_seconds_sum", &labels);
        assert!(count >= at_least && sum >= 0.02 * count, "{operation}: {count}, {sum}");
        let fast = [labels[0], ("le", "0.01")];
        scrape.assert("campanile_store_call_duration_seconds_bucket", &fast, 0.0);
    }
    let batches = scrape.value("campanile_store_batch_size_count", &[]);
    let commands = scrape.value("campanile_store_batch_size_sum", &[]);
    assert!(commands >= 8.0 && commands > batches, "{commands} in {batches}");
}

async fn futures_join(calls: [impl Future<Output = Answered>; 3]) {
    let [a, b, c] = calls;
    let (a, b, c) = tokio::join!(a, b, c);
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
}

#[tokio::test(start_paused = true)]
async fn run_without_a_store_is_counted_as_unguarded() {
    let process = Process::new();
    let fails = process.layer();
    let runs = process.layer().with_fail_open_risking_duplicates(|_, _| true);
    process.store.inject_always(Fault::Refuse);
    call(&service(fails), "a", "ok").await.unwrap_err();
    process.assert_outcome("store_error", 1.0);
    call(&service(runs), "b", "ok").await.unwrap();
    process.assert_outcome("without_lock", 1.0);
    let unavailable = [("campanile_unguarded_cause", "store_unavailable")];
    process.scrape.assert("campanile_unguarded_runs_total", &unavailable, 1.0);
}

/// A store that always fails with this error.
#[derive(Clone)]
struct Failing(StoreError);

impl Store for Failing {
    async fn apply(&self, _: Command) -> Result<Answer, StoreError> {
        Err(self.0.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn store_errors_are_counted_by_type() {
    for (name, error) in [
        ("unavailable", StoreError::unavailable("gone")),
        ("timeout", StoreError::timeout("late")),
        ("unreadable", StoreError::unreadable("garbage")),
        ("misconfigured", StoreError::misconfigured("buckets")),
    ] {
        let recorder = recorder();
        let scrape = Scrape(recorder.handle());
        let clock = TestClock::new();
        let layer = metrics::with_local_recorder(&recorder, || {
            let (keeper, task) = LockKeeper::pair(Failing(error), clock.keeper_clock());
            drop(tokio::spawn(task));
            IdempotencyLayer::new(&keeper, "payments", key::header("id")).unwrap()
        });
        call(&service(layer), "a", "ok").await.unwrap_err();
        let count = scrape.value("campanile_store_errors_total", &[("error_type", name)]);
        assert!(count >= 1.0, "{name}: {count}");
    }
}

/// A store in which no entry can be read.
#[derive(Clone)]
struct Garbage(TestClock);

impl Store for Garbage {
    async fn apply(&self, _: Command) -> Result<Answer, StoreError> {
        Ok(Answer::new(self.0.store_clock()(), Reply::Corrupt))
    }
}

#[tokio::test(start_paused = true)]
async fn unreadable_entry_is_counted_as_a_store_error() {
    let (recorder, clock) = (recorder(), TestClock::new());
    let scrape = Scrape(recorder.handle());
    let layer = metrics::with_local_recorder(&recorder, || {
        let (keeper, task) = LockKeeper::pair(Garbage(clock.clone()), clock.keeper_clock());
        drop(tokio::spawn(task));
        IdempotencyLayer::new(&keeper, "payments", key::header("id")).unwrap()
    });
    call(&service(layer), "a", "ok").await.unwrap_err();
    scrape.assert("campanile_store_errors_total", &[("error_type", "unreadable")], 1.0);
}

#[test]
fn validation_of_settings_creates_no_series() {
    let recorder = recorder();
    let config = IdempotencyConfig::new("validated");
    let namespaces = || recorder.handle().render().matches("validated").count();
    metrics::with_local_recorder(&recorder, || config.validate().unwrap());
    assert_eq!(namespaces(), 0);
    let layer = || IdempotencyLayer::new(MemoryStore::new(), config.clone(), ()).unwrap();
    drop(metrics::with_local_recorder(&recorder, layer));
    assert!(namespaces() > 0);
}
