//! Requests that are dropped while one of their commands is in flight.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use campanile_core::{BoxError, Entry, Outcome, Request, State, error};
use campanile_idempotency::policy::OnExhausted;
use campanile_idempotency::{IdempotencyError, Runner};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

use super::{DELIVERIES, DROP_AFTER, Delivery, SETTLE_TIME};
use crate::harness::{
    CallResult, HOUR, Harness, TestLayer, TestService, failing_service, layer_error, lock, request,
};

/// The command in flight when the request is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PendingCommand {
    Acquire,
    /// After a failed attempt.
    AcquireAgain,
    /// Granted a give-up lock, because no attempt is left.
    AcquireExhausted,
    Complete,
    Fail,
    /// After a timeout inside the layer.
    FailElapsed,
    Release,
    GiveUp,
}

const COMMANDS: [PendingCommand; 8] = [
    PendingCommand::Acquire,
    PendingCommand::AcquireAgain,
    PendingCommand::AcquireExhausted,
    PendingCommand::Complete,
    PendingCommand::Fail,
    PendingCommand::FailElapsed,
    PendingCommand::Release,
    PendingCommand::GiveUp,
];

impl PendingCommand {
    fn name(self) -> &'static str {
        match self {
            Self::Acquire | Self::AcquireAgain | Self::AcquireExhausted => "acquire",
            Self::Complete => "complete",
            Self::Fail | Self::FailElapsed => "fail",
            Self::Release => "release",
            Self::GiveUp => "give_up",
        }
    }

    fn layer(self, harness: &Harness) -> TestLayer {
        match self {
            Self::AcquireExhausted => harness.layer_with(|config| config.with_max_attempts(1)),
            Self::GiveUp => harness.layer().on_exhausted(OnExhausted::GiveUp),
            _ => harness.layer(),
        }
    }

    /// Brings the key into the state that the request finds.
    async fn prepare(self, layer: &TestLayer) {
        if let Self::AcquireAgain | Self::AcquireExhausted = self {
            failing_service(layer, || "gateway busy".into()).run("p-1").await.unwrap_err();
            sleep(HOUR).await;
        }
    }

    /// The result of the handler.
    async fn handle(self) -> Result<(), BoxError> {
        match self {
            Self::Fail => Err("gateway busy".into()),
            Self::FailElapsed => std::future::pending().await,
            Self::Release => Err(Overloaded::new().into()),
            Self::GiveUp => Err(error::permanent("no such account").into()),
            _ => Ok(()),
        }
    }

    /// The state and the attempts of the final entry, and whether there must be an entry.
    fn expected_entry(self) -> (State, u16, bool) {
        match self {
            Self::Acquire => (State::Retrying, 0, false),
            Self::AcquireAgain | Self::AcquireExhausted | Self::Fail | Self::FailElapsed => {
                (State::Retrying, 1, true)
            }
            Self::Complete => (State::Completed, 1, true),
            Self::Release => (State::Retrying, 0, true),
            Self::GiveUp => (State::Failed, 1, true),
        }
    }
}

/// What drops the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dropper {
    /// The caller, by dropping the future.
    Caller,
    /// tower's `Timeout` around the layer.
    Timeout,
    /// The caller of [`Runner::run`].
    GuardCaller,
}

/// A concurrency limit around the layer and one inside it.
struct Permits([Arc<Semaphore>; 2]);

impl Permits {
    fn new() -> Self {
        Self([1, 1].map(|permits| Arc::new(Semaphore::new(permits))))
    }

    fn limits(&self) -> [GlobalConcurrencyLimitLayer; 2] {
        self.0.clone().map(GlobalConcurrencyLimitLayer::with_semaphore)
    }

    fn free(&self) -> [usize; 2] {
        self.0.each_ref().map(|semaphore| semaphore.available_permits())
    }
}

#[derive(Clone, Copy, Debug)]
struct Run {
    command: PendingCommand,
    delivery: Delivery,
    dropper: Dropper,
}

impl Run {
    async fn run(self) {
        let harness = Harness::new();
        let layer = self.command.layer(&harness);
        self.command.prepare(&layer).await;
        self.delivery.inject(&harness, self.command.name());
        let (permits, runs) = (Permits::new(), Arc::new(AtomicUsize::new(0)));
        let call = self.call(layer.clone(), &permits, runs.clone());
        let was_dropped = match timeout(DROP_AFTER, call).await {
            Ok(result) => result.unwrap_err().is::<Elapsed>() && self.dropper == Dropper::Timeout,
            Err(_) => self.dropper != Dropper::Timeout,
        };
        assert!(was_dropped, "{self:?}: completed before the drop");
        assert_eq!(harness.store.count(self.command.name()), 1, "{self:?}: sent once");
        assert_eq!(permits.free(), [1, 1], "{self:?}: permits released at once");

        self.delivery.finish(&harness).await;
        let expected_runs = usize::from(self.command.name() != "acquire");
        assert_eq!(runs.load(Ordering::Relaxed), expected_runs, "{self:?}");
        let entry = harness.entry("p-1");
        let (state, attempt, must_exist) = self.command.expected_entry();
        match &entry {
            Some(entry) => {
                assert_eq!((entry.state(), entry.attempt()), (state, attempt), "{self:?}")
            }
            None => assert!(!must_exist, "{self:?}"),
        }
        self.assert_next_delivery(&layer, entry.as_ref()).await;
        harness.assert_settled().await;
    }

    fn call(
        self,
        layer: TestLayer,
        permits: &Permits,
        runs: Arc<AtomicUsize>,
    ) -> Pin<Box<dyn Future<Output = CallResult<()>>>> {
        let handler = move || {
            runs.fetch_add(1, Ordering::Relaxed);
            self.command.handle()
        };
        const HANDLER_TIMEOUT: Duration = Duration::from_millis(1);
        if self.dropper == Dropper::GuardCaller {
            let runner = Runner::from(layer);
            return Box::pin(async move {
                runner.run("p-1", |_| async { timeout(HANDLER_TIMEOUT, handler()).await? }).await
            });
        }
        let [outside, inside] = permits.limits();
        let limit = if self.dropper == Dropper::Timeout { DROP_AFTER / 2 } else { HOUR };
        let service = ServiceBuilder::new()
            .timeout(limit)
            .layer(outside)
            .layer(layer)
            .layer(inside)
            .timeout(HANDLER_TIMEOUT)
            .service_fn(move |_: Request<()>| handler());
        Box::pin(service.oneshot(request("p-1")))
    }

    /// Asserts that the next delivery gets the result that follows from the entry.
    async fn assert_next_delivery(self, layer: &TestLayer, before: Option<&Entry>) {
        sleep(HOUR).await; // longer than the backoff
        let next = layer.layer(service_fn(async |request: Request<()>| {
            Ok::<_, BoxError>(lock(&request).attempt())
        }));
        let result = next.run("p-1").await;
        match (self.command, before.map_or(0, Entry::attempt)) {
            (PendingCommand::Complete, _) => assert!(result.unwrap().is_duplicate(), "{self:?}"),
            (PendingCommand::GiveUp, _) => {
                assert!(matches!(result, Ok(Outcome::GivenUp(_))), "{self:?}: {result:?}");
            }
            (PendingCommand::AcquireExhausted, _) => {
                let IdempotencyError::Exhausted(exhausted) = layer_error(&result) else {
                    panic!("{self:?}: {result:?}");
                };
                assert_eq!(exhausted.attempts, 1, "{self:?}");
            }
            (_, attempts) => {
                assert_eq!(
                    result.unwrap(),
                    Outcome::Processed(u32::from(attempts) + 1),
                    "{self:?}"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn request_dropped_during_command_leaves_no_lock_and_counts_once() {
    let mut runs = 0;
    for command in COMMANDS {
        for delivery in DELIVERIES {
            for dropper in [Dropper::Caller, Dropper::Timeout, Dropper::GuardCaller] {
                Run { command, delivery, dropper }.run().await;
                runs += 1;
            }
        }
    }
    println!("{runs} runs");
}

/// Polls the future this often, and then drops it, at once or when it is woken again. Checks
/// whether it completed before.
async fn poll_until_dropped<F: Future + Unpin>(mut future: F, polls: usize, woken: bool) -> bool {
    let mut polled = 0;
    poll_fn(|cx| {
        if polled < polls {
            polled += 1;
            if Pin::new(&mut future).poll(cx).is_ready() {
                return Poll::Ready(true);
            }
            if polled < polls || woken {
                return Poll::Pending;
            }
        }
        Poll::Ready(false)
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn dropped_request_releases_permits_and_counts_once() {
    let mut runs = 0;
    // Whole requests, starting with their acquire.
    for command in COMMANDS.into_iter().filter(|command| command.name() != "acquire") {
        for woken in [false, true] {
            for polls in 0.. {
                let (harness, permits) = (Harness::new(), Permits::new());
                let layer = command.layer(&harness);
                let run =
                    Run { command, delivery: Delivery::AnsweredLater, dropper: Dropper::Caller };
                let ended =
                    poll_until_dropped(run.call(layer, &permits, Arc::default()), polls, woken)
                        .await;
                let scenario = format!("{command:?} after {polls} polls, woken {woken}");
                assert_eq!(permits.free(), [1, 1], "{scenario}");
                sleep(SETTLE_TIME).await;
                let entry = harness.entry("p-1").map(|entry| (entry.state(), entry.attempt()));
                let (state, attempt, _) = command.expected_entry();
                let untried = [None, Some((State::Retrying, 0))];
                assert!(
                    entry == Some((state, attempt)) || (untried.contains(&entry) && !ended),
                    "{scenario}: {entry:?}"
                );
                harness.assert_settled().await;
                runs += 1;
                if ended {
                    break;
                }
            }
        }
    }
    println!("{runs} runs");
}
