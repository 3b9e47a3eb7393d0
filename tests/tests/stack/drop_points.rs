//! The future of a consumer, dropped at each point of its progress.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile::prelude::*;
use campanile::store::{Entry, State, StoreKey};
use campanile::{
    Consumer, ConsumerError, IdempotencyKey, LockKeeper, OnGiveUp, Request,
    consumer::{Serve, Summary},
    error,
    key::Namespace,
};
use campanile_test::faults::{Fault, FaultyStore};
use campanile_test::{Message, MockKafka};
use tokio::time::{sleep, timeout};
use tower::ServiceBuilder;

use super::{Payment, group};

const TIMEOUT: Duration = Duration::from_secs(30);

/// What the consumer is doing with its first record when it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DropPoint {
    /// The future was never polled.
    NotPolled,
    /// No broker has answered yet.
    Joining,
    Acquiring(Fault),
    Handling,
    BackingOff,
    Completing(Fault),
    GivingUp(Fault),
    ProbingStore,
}

/// The command is not applied before the drop, or it is applied but not answered.
const UNANSWERED_FAULTS: [Fault; 2] = [Fault::Hang, Fault::HangReply];

/// A process with its keeper, over a store that outlives the process.
struct Process {
    store: FaultyStore<MemoryStore>,
    keeper: LockKeeper,
    config: ConsumerConfig,
}

/// The handlers that have started, and those that have finished.
#[derive(Clone, Default)]
struct HandlerLog(Arc<Mutex<(Vec<String>, Vec<String>)>>);

impl HandlerLog {
    fn starts(&self, id: &str) -> usize {
        self.0.lock().unwrap().0.iter().filter(|started| *started == id).count()
    }

    /// Waits until no service and no handler holds a clone of the log.
    async fn wait_until_dropped(&self) {
        while Arc::strong_count(&self.0) > 1 {
            sleep(Duration::from_millis(1)).await;
        }
    }

    fn completions(&self, id: &str) -> usize {
        self.0.lock().unwrap().1.iter().filter(|completed| *completed == id).count()
    }
}

impl Process {
    fn new(store: &MemoryStore, kafka: &MockKafka) -> Self {
        let store = FaultyStore::new(store.clone());
        let keeper = LockKeeper::new(store.clone()).unwrap();
        Self { store, keeper, config: kafka.consumer_config("leaving").into() }
    }

    /// Creates a consumer with a handler that treats the first record as `point` requires.
    fn serve(&self, point: DropPoint, log: HandlerLog) -> Serve {
        let by_id = key::field(|payment: &Payment| &payment.id);
        let service = ServiceBuilder::new()
            .layer(DecodeLayer::json())
            .layer(IdempotencyLayer::new(&self.keeper, "leaving", by_id).unwrap())
            .service_fn(move |request: Request<Payment>| {
                let log = log.clone();
                async move {
                    let id = request.body().id.clone();
                    log.0.lock().unwrap().0.push(id.clone());
                    match point {
                        DropPoint::Handling if id == "first" => std::future::pending().await,
                        DropPoint::BackingOff if id == "first" => {
                            // Long enough for the drop to come first on a stalled machine.
                            return Err(error::retry_after("busy", Duration::from_secs(5)).into());
                        }
                        DropPoint::GivingUp(_) if id == "first" => {
                            return Err(BoxError::from(error::permanent("no such account")));
                        }
                        _ => {}
                    }
                    log.0.lock().unwrap().1.push(id);
                    Ok(())
                }
            });
        let consumer = Consumer::new(self.config.clone()).unwrap().subscribe(["payments"]);
        consumer.on_give_up(OnGiveUp::Skip).serve(service)
    }
}

impl DropPoint {
    fn inject_fault(self, store: &FaultyStore<MemoryStore>) {
        match self {
            Self::Acquiring(fault) => store.inject_next_of("acquire", fault),
            Self::Completing(fault) => store.inject_next_of("complete", fault),
            Self::GivingUp(fault) => store.inject_next_of("give_up", fault),
            Self::ProbingStore => store.inject_always(Fault::Refuse),
            _ => {}
        }
    }

    fn is_reached(self, store: &FaultyStore<MemoryStore>, log: &HandlerLog) -> bool {
        match self {
            Self::NotPolled | Self::Joining => true,
            Self::Acquiring(_) => store.count("acquire") == 1,
            Self::Handling => log.starts("first") == 1,
            Self::BackingOff => state(entry(store, "first").as_ref()) == Some(State::Retrying),
            Self::Completing(_) => store.count("complete") == 1,
            Self::GivingUp(_) => store.count("give_up") == 1,
            // While an acquire is in doubt, each probe cancels it instead of acquiring again.
            Self::ProbingStore => store.count("cancel") >= 3,
        }
    }

    /// Predicts the entry's state, attempts and interrupts once all commands have reached the
    /// store, and the final number of attempts.
    fn expected_state(self) -> (Option<(State, u16, u8)>, u16) {
        match self {
            Self::NotPolled | Self::Joining => (None, 1),
            // Or no entry, if the command never reached the store.
            Self::Acquiring(_) | Self::ProbingStore => (Some((State::Retrying, 0, 0)), 1),
            // A shutdown, which hands the attempt back.
            Self::Handling => (Some((State::Retrying, 0, 1)), 1),
            Self::BackingOff => (Some((State::Retrying, 1, 0)), 2),
            Self::Completing(_) => (Some((State::Completed, 1, 0)), 1),
            Self::GivingUp(_) => (Some((State::Failed, 1, 0)), 1),
        }
    }

    async fn run_until_reached(
        self,
        serving: &mut (impl Future<Output = Result<Summary, ConsumerError>> + Unpin),
        store: &FaultyStore<MemoryStore>,
        log: &HandlerLog,
    ) {
        loop {
            let polled = timeout(Duration::from_millis(5), &mut *serving).await;
            assert!(polled.is_err(), "{self:?}: serving has ended: {polled:?}");
            if self.is_reached(store, log) {
                return;
            }
        }
    }

    async fn check(self) {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic("payments", 1).unwrap();
        for payload in [r#"{"id":"first"}"#, r#"{"id":"second"}"#] {
            let message = Message::to("payments").partition(0).payload(payload);
            kafka.producer().produce(message).unwrap();
        }
        let (memory, log) = (MemoryStore::new(), HandlerLog::default());

        let process = Process::new(&memory, &kafka);
        self.inject_fault(&process.store);
        if self == Self::Joining {
            kafka.cluster().broker_down(1).unwrap();
        }
        let mut serving = process.serve(self, log.clone()).into_future();
        if self != Self::NotPolled {
            let run = self.run_until_reached(&mut serving, &process.store, &log);
            timeout(TIMEOUT, run)
                .await
                .unwrap_or_else(|_| panic!("{self:?}: timed out before the point was reached"));
        }
        drop(serving);
        if self == Self::Joining {
            kafka.cluster().broker_up(1).unwrap();
        }
        // Commands still pending in the store complete only after this.
        timeout(TIMEOUT, log.wait_until_dropped())
            .await
            .unwrap_or_else(|_| panic!("{self:?}: the service was not dropped"));
        process.store.heal();
        assert!(process.keeper.shutdown(TIMEOUT).await.settled, "{self:?}: a lock is still held");
        let (expected, attempts) = self.expected_state();
        let found = entry(&process.store, "first");
        let found = found.map(|entry| (entry.state(), entry.attempt(), entry.interrupts()));
        let untouched = matches!(self, Self::Acquiring(_) | Self::ProbingStore) && found.is_none();
        assert!(found == expected || untouched, "{self:?}: expected {expected:?}, got {found:?}");

        let next = Process::new(&memory, &kafka);
        let serving = tokio::spawn(next.serve(Self::NotPolled, log.clone()).into_future());
        let config = kafka.consumer_config("leaving");
        let wait = move || group::wait_until_committed(&config, "payments", 1, TIMEOUT);
        tokio::task::spawn_blocking(wait).await.unwrap_or_else(|_| panic!("{self:?}"));
        serving.abort();
        let completions = usize::from(!matches!(self, Self::GivingUp(_)));
        assert_eq!(
            (log.completions("first"), log.completions("second")),
            (completions, 1),
            "{self:?}"
        );
        let first = entry(&next.store, "first").unwrap();
        let end = if completions == 1 { State::Completed } else { State::Failed };
        assert_eq!((first.state(), first.attempt()), (end, attempts), "{self:?}");
    }
}

fn entry(store: &FaultyStore<MemoryStore>, id: &str) -> Option<Entry> {
    let key = IdempotencyKey::new(id.to_owned()).unwrap();
    store.inner().entry(&StoreKey::new(Namespace::try_from("leaving").unwrap(), &key))
}

fn state(entry: Option<&Entry>) -> Option<State> {
    entry.map(Entry::state)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_dropped_at_any_point_lets_next_continue() {
    let mut all = vec![
        DropPoint::NotPolled,
        DropPoint::Joining,
        DropPoint::Handling,
        DropPoint::BackingOff,
        DropPoint::ProbingStore,
    ];
    all.extend(UNANSWERED_FAULTS.map(DropPoint::Acquiring));
    all.extend(UNANSWERED_FAULTS.map(DropPoint::Completing));
    all.extend(UNANSWERED_FAULTS.map(DropPoint::GivingUp));
    println!("{} runs", all.len());
    let runs: Vec<_> = all.into_iter().map(|point| tokio::spawn(point.check())).collect();
    for run in runs {
        run.await.unwrap();
    }
}
