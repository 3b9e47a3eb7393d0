//! Requests.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use campanile_core::{BoxError, Entry, Outcome, Request, State, error};
use campanile_idempotency::policy::OnGivenUp;
use campanile_idempotency::{Guard, IdempotencyError};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

use super::{ENDED, FATES, Fate, LEAVES};
use crate::world::{Called, Guarding, HOUR, TestLayer, World, failing, lock, refusal, request};

/// What the request waits for when it is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Acquire,
    /// After an attempt that failed.
    AcquireAgain,
    /// A burial lock.
    AcquireExhausted,
    Complete,
    Fail,
    /// Because of a time-out inside the layer.
    FailElapsed,
    Release,
    Reject,
}

const COMMANDS: [Command; 8] = [
    Command::Acquire,
    Command::AcquireAgain,
    Command::AcquireExhausted,
    Command::Complete,
    Command::Fail,
    Command::FailElapsed,
    Command::Release,
    Command::Reject,
];

impl Command {
    fn name(self) -> &'static str {
        match self {
            Self::Acquire | Self::AcquireAgain | Self::AcquireExhausted => "acquire",
            Self::Complete => "complete",
            Self::Fail | Self::FailElapsed => "fail",
            Self::Release => "release",
            Self::Reject => "reject",
        }
    }

    fn layer(self, world: &World) -> TestLayer {
        match self {
            Self::AcquireExhausted => world.layer().with_max_attempts(1).unwrap(),
            Self::Reject => world.layer().with_given_up(OnGivenUp::Reject),
            _ => world.layer(),
        }
    }

    /// What had happened to the key before.
    async fn prepare(self, layer: &TestLayer) {
        if let Self::AcquireAgain | Self::AcquireExhausted = self {
            failing(layer, || "gateway busy".into()).run("p-1").await.unwrap_err();
            sleep(HOUR).await;
        }
    }

    /// The handler's.
    async fn handle(self) -> Result<(), BoxError> {
        match self {
            Self::Fail => Err("gateway busy".into()),
            Self::FailElapsed => std::future::pending().await,
            Self::Release => Err(Overloaded::new().into()),
            Self::Reject => Err(error::permanent("no such account").into()),
            _ => Ok(()),
        }
    }

    /// State and attempts of the entry in the end; whether there must be one.
    fn leaves(self) -> (State, u16, bool) {
        match self {
            Self::Acquire => (State::Retrying, 0, false),
            Self::AcquireAgain | Self::AcquireExhausted | Self::Fail | Self::FailElapsed => {
                (State::Retrying, 1, true)
            }
            Self::Complete => (State::Completed, 1, true),
            Self::Release => (State::Retrying, 0, true),
            Self::Reject => (State::Failed, 1, true),
        }
    }
}

/// Who leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// The caller, who drops the future.
    Caller,
    /// tower's `Timeout` around the layer.
    Timeout,
    /// The caller of [`Guard::run`].
    GuardsCaller,
}

/// A limit around the layer and one inside it.
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
    command: Command,
    fate: Fate,
    who: Who,
}

impl Run {
    async fn run(self) {
        let world = World::new();
        let layer = self.command.layer(&world);
        self.command.prepare(&layer).await;
        self.fate.awaits(&world, self.command.name());
        let (permits, runs) = (Permits::new(), Arc::new(AtomicUsize::new(0)));
        let call = self.call(layer.clone(), &permits, runs.clone());
        let left = match timeout(LEAVES, call).await {
            Ok(called) => called.unwrap_err().is::<Elapsed>() && self.who == Who::Timeout,
            Err(_) => self.who != Who::Timeout,
        };
        assert!(left, "{self:?}: it ended before it was left");
        assert_eq!(world.store.count(self.command.name()), 1, "{self:?}: its command was sent");
        assert_eq!(permits.free(), [1, 1], "{self:?}: the permits are back at once");

        self.fate.comes(&world).await;
        let begun = usize::from(self.command.name() != "acquire");
        assert_eq!(runs.load(Ordering::Relaxed), begun, "{self:?}");
        let entry = world.entry("p-1");
        let (state, attempt, must_be) = self.command.leaves();
        match &entry {
            Some(entry) => {
                assert_eq!((entry.state(), entry.attempt()), (state, attempt), "{self:?}")
            }
            None => assert!(!must_be, "{self:?}"),
        }
        self.assert_goes_on(&layer, entry.as_ref()).await;
        world.assert_quiet().await;
    }

    fn call(
        self,
        layer: TestLayer,
        permits: &Permits,
        runs: Arc<AtomicUsize>,
    ) -> Pin<Box<dyn Future<Output = Called<()>>>> {
        let handler = move || {
            runs.fetch_add(1, Ordering::Relaxed);
            self.command.handle()
        };
        const AT_ONCE: Duration = Duration::from_millis(1);
        if self.who == Who::GuardsCaller {
            let guard = Guard::from(layer);
            return Box::pin(async move {
                guard.run("p-1", |_| async { timeout(AT_ONCE, handler()).await? }).await
            });
        }
        let [outside, inside] = permits.limits();
        let limit = if self.who == Who::Timeout { LEAVES / 2 } else { HOUR };
        let service = ServiceBuilder::new()
            .timeout(limit)
            .layer(outside)
            .layer(layer)
            .layer(inside)
            .timeout(AT_ONCE)
            .service_fn(move |_: Request<()>| handler());
        Box::pin(service.oneshot(request("p-1")))
    }

    /// The next delivery gets what the entry says.
    async fn assert_goes_on(self, layer: &TestLayer, before: Option<&Entry>) {
        sleep(HOUR).await; // the back-off's
        let next = layer.layer(service_fn(async |request: Request<()>| {
            Ok::<_, BoxError>(lock(&request).attempt())
        }));
        let called = next.run("p-1").await;
        match (self.command, before.map_or(0, Entry::attempt)) {
            (Command::Complete, _) => assert!(called.unwrap().is_duplicate(), "{self:?}"),
            (Command::Reject, _) => {
                assert!(matches!(called, Ok(Outcome::Parked(_))), "{self:?}: {called:?}");
            }
            (Command::AcquireExhausted, _) => {
                let IdempotencyError::Exhausted(exhausted) = refusal(&called) else {
                    panic!("{self:?}: {called:?}");
                };
                assert_eq!(exhausted.attempts, 1, "{self:?}");
            }
            (_, attempts) => {
                assert_eq!(
                    called.unwrap(),
                    Outcome::Processed(u32::from(attempts) + 1),
                    "{self:?}"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_left_while_its_command_is_on_its_way_leaves_no_lock_and_counts_once() {
    let mut runs = 0;
    for command in COMMANDS {
        for fate in FATES {
            for who in [Who::Caller, Who::Timeout, Who::GuardsCaller] {
                Run { command, fate, who }.run().await;
                runs += 1;
            }
        }
    }
    println!("{runs} runs");
}

/// Polls so often, or until it is woken once more; says whether it ended before.
async fn cut<F: Future + Unpin>(mut future: F, polls: usize, woken: bool) -> bool {
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
async fn a_request_gives_its_permits_back_and_counts_once_wherever_it_is_dropped() {
    let mut runs = 0;
    // Whole requests, from their acquire on.
    for command in COMMANDS.into_iter().filter(|command| command.name() != "acquire") {
        for woken in [false, true] {
            for polls in 0.. {
                let (world, permits) = (World::new(), Permits::new());
                let layer = command.layer(&world);
                let run = Run { command, fate: Fate::AnsweredLater, who: Who::Caller };
                let ended = cut(run.call(layer, &permits, Arc::default()), polls, woken).await;
                let what = format!("{command:?} after {polls} polls, woken {woken}");
                assert_eq!(permits.free(), [1, 1], "{what}");
                sleep(ENDED).await;
                let entry = world.entry("p-1").map(|entry| (entry.state(), entry.attempt()));
                let (state, attempt, _) = command.leaves();
                let untried = [None, Some((State::Retrying, 0))];
                assert!(
                    entry == Some((state, attempt)) || (untried.contains(&entry) && !ended),
                    "{what}: {entry:?}"
                );
                world.assert_quiet().await;
                runs += 1;
                if ended {
                    break;
                }
            }
        }
    }
    println!("{runs} runs");
}
