//! Tortures a handler: stops it at each of its awaits, and then asks your test whether its effects are right.
//!
//! A handler runs again after a crash, so each of its effects must take place once although the code
//! for it runs twice. [`torture`](torture()) runs your own stack, with the handler in it, in one
//! situation after the other, delivers each record until it is completed, as Kafka does, and then calls
//! your check. It fails with the smallest situation in which the check fails, in words.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::{Arc, Mutex};
//!
//! use campanile_core::{BoxError, DecodeLayer, Outcome, Record, Request, handler, key};
//! use campanile_idempotency::{IdempotencyLayer, LockKeeper};
//! use campanile_test::torture::{point, torture};
//! use tower::{Service, ServiceBuilder};
//!
//! /// A fake of the payment provider: the charges of each `Idempotency-Key`.
//! #[derive(Clone, Default)]
//! struct Provider(Arc<Mutex<BTreeMap<String, usize>>>);
//!
//! impl Provider {
//!     async fn charge(&self, key: String) {
//!         point("charge requested").await;
//!         *self.0.lock().unwrap().entry(key).or_default() += 1;
//!         point("charged").await;
//!     }
//!
//!     fn check(&self, expected: usize) -> Result<(), String> {
//!         let charges = self.0.lock().unwrap().len();
//!         if charges == expected { Ok(()) } else { Err(format!("{charges} charges, expected {expected}")) }
//!     }
//! }
//!
//! /// The handler: the provider deduplicates by the derived key.
//! async fn charge(provider: Provider, request: Request<String>) -> Result<(), BoxError> {
//!     let lock = request.lock()?;
//!     provider.charge(lock.derive("charge")?).await;
//!     Ok(())
//! }
//!
//! /// The stack of the program, which its tests share.
//! fn stack(
//!     keeper: LockKeeper,
//!     provider: Provider,
//! ) -> Result<impl Service<Record, Response = Outcome<()>, Error = BoxError> + Clone, BoxError> {
//!     Ok(ServiceBuilder::new()
//!         .layer(DecodeLayer::json())
//!         .layer(IdempotencyLayer::new(keeper, "billing", key::field(|id: &String| id))?)
//!         .service(handler(provider, charge)))
//! }
//!
//! let payments = ["p-1", "p-2"].into_iter().enumerate().map(|(offset, id)| {
//!     Record::builder("payments", 0, offset as i64).payload(format!("\"{id}\"")).build()
//! });
//! let report = torture(
//!     // what survives a crash, new for each situation
//!     async || Provider::default(),
//!     // what a process does when it starts
//!     async |provider, keeper| stack(keeper, provider),
//!     // what must hold when all records are completed
//!     async |provider: Provider| provider.check(2),
//! )
//! .run(payments)
//! .unwrap();
//! assert_eq!(report.awaits, 4); // two in each handler
//! ```
//!
//! # Situations
//!
//! First nothing fails. Then each record has one fault, at each await of its stack and at each call of the
//! store. At last, 200 random situations (40 on real time) have two faults: in two records, or in the first
//! and the second attempt at one. A process is a runtime with its tasks, a keeper, and a stack, which the
//! second function creates.
//!
//! | the story says | what happened |
//! |---|---|
//! | completed | the record is delivered again after its completion |
//! | dropped | the stack's future is dropped, as by a revoke or a timeout; the process and its tasks continue |
//! | killed | the process ends with all its tasks, and another one starts |
//! | refused by the store | a call of the store fails, and is not applied |
//! | without the reply | a call of the store fails, and is applied |
//! | without the store | the store is unavailable; if the stack still waits for it after the lock has expired, the process is killed |
//! | suspended | the process is suspended for longer than its lock lives; another process handles the record, and then the first one continues |
//! | without its lock | the same, but the first process does not know that its lock has expired |
//!
//! A handler without its lock continues until its next renewal, as if its request to the receiver were
//! delivered late. [Checking](campanile_core::LockHandle::check) the lock does not help here; a
//! receiver that deduplicates or compares tokens does.
//!
//! In addition to the check, each record must be completed in the first situation, unless
//! [`with_given_up`](Torture::with_given_up) is set. A record that is completed there must not be given up
//! in another situation. The stack must allow at least three attempts for each key, because the faults of a
//! situation use up to two of them.
//!
//! # Awaits
//!
//! An await counts if the stack waits there. It is stopped once the wait is over: the effect of the call
//! has taken place, and the handler has not seen its result. Fakes never wait; give them
//! [points](point()). The kit also stops the stack while it acquires the lock and while it records the
//! result.
//!
//! Not covered are blocking tasks, which outlive a killed process, and stacks over another store than that of
//! the keeper, such as the inbox in Postgres. On a kill, code that runs on drop does run, as if a server had
//! noticed that its client is gone.
//!
//! On virtual time, time passes while everything waits. A handler that polls, for example with
//! [`yield_now`](tokio::task::yield_now), until another task's timer has fired never ends.

mod attempt;
mod delivery;
mod fault;
mod point;
mod process;
mod report;
mod search;
mod story;
mod time;
mod trial;
mod world;

use std::fmt;

use campanile_core::{BoxError, Outcome};
use campanile_idempotency::LockKeeper;
use tokio::runtime::Handle;
use tower_service::Service;

pub use self::point::point;
use self::process::{Environment, Process};
pub use self::report::{Failure, Report};
use self::search::Search;
use self::trial::Trial;
use self::world::TypedWorld;

/// Creates a test of a stack from three functions:
///
/// * `setup` creates what survives a crash, such as a fake of a database, or the name of a new database.
///   It is called once for each situation.
/// * `start` creates the stack of a process, over the process's keeper. It is called when a process starts:
///   once, and again after each kill. Connections belong to it, because they end with the process.
/// * `check` returns an error if an effect is missing or has taken place twice. It is called when all
///   records are completed, and the tasks that the handlers have left behind have ended, or a minute of
///   virtual time (100 ms of real time) has passed.
///
/// See the [module](self) for an example.
#[must_use = "nothing runs before `run` is called"]
pub fn torture<W, S, E, Setup, Start, Check>(
    setup: Setup,
    start: Start,
    check: Check,
) -> Torture<Setup, Start, Check>
where
    Setup: AsyncFn() -> W,
    Start: AsyncFn(W, LockKeeper) -> Result<S, BoxError>,
    Check: AsyncFn(W) -> Result<(), E>,
{
    Torture { setup, start, check, given_up: 0, seed: 0, has_real_time: false }
}

/// A test of a stack. Created by [`torture`](torture()).
#[must_use = "nothing runs before `run` is called"]
pub struct Torture<Setup, Start, Check> {
    setup: Setup,
    start: Start,
    check: Check,
    given_up: usize,
    seed: u64,
    has_real_time: bool,
}

impl<Setup, Start, Check> Torture<Setup, Start, Check> {
    /// Sets how many of the records are given up although nothing is stopped, for example dead-lettered
    /// because their payload is invalid. Default: 0, so that a handler that never completes a record fails
    /// the test.
    ///
    /// A duplicate of a record that is given up counts as well.
    pub fn with_given_up(mut self, records: usize) -> Self {
        self.given_up = records;
        self
    }

    /// Sets the seed of the situations with two faults, and of the backoffs. Default: 0, so that a test does
    /// the same in each run. Take a random one for a search that continues from day to day: the seed is
    /// part of the failure.
    ///
    /// The seed does not determine the branch with which [`tokio::select!`] begins. If the stack depends on
    /// it, begin with `biased;`.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Runs on real time, for stacks that do real I/O, for example with a database. Default: virtual time,
    /// on which waits take no time and I/O is not available.
    ///
    /// Waits for locks and backoffs are skipped in real time, too. The number of awaits may differ from
    /// run to run.
    pub fn with_real_time(mut self) -> Self {
        self.has_real_time = true;
        self
    }

    /// Delivers these requests in all situations: records, or what else the stack takes.
    ///
    /// The number of situations grows with the records and their awaits, so take few. Two with the same key
    /// are a duplicate from a producer.
    ///
    /// # Errors
    /// Fails with the smallest situation in which the check fails, a record is neither completed nor given
    /// up, a record is given up that must be completed, or the stack is not created. Also fails if there
    /// are no records.
    ///
    /// # Panics
    /// Panics if it is called on a tokio runtime: use `#[test]`, and not `#[tokio::test]`. A panic of one of
    /// the three functions is propagated.
    #[track_caller]
    pub fn run<W, S, R, T, E>(
        self,
        requests: impl IntoIterator<Item = R>,
    ) -> Result<Report, Failure>
    where
        R: Clone + 'static,
        W: Clone,
        S: Service<R, Response = Outcome<T>, Error: Into<BoxError>> + Clone + 'static,
        E: Into<BoxError>,
        Setup: AsyncFn() -> W,
        Start: AsyncFn(W, LockKeeper) -> Result<S, BoxError>,
        Check: AsyncFn(W) -> Result<(), E>,
    {
        assert!(
            Handle::try_current().is_err(),
            "`torture` starts runtimes of its own; use `#[test]` instead of `#[tokio::test]`"
        );
        let requests: Vec<R> = requests.into_iter().collect();
        let trial = |faults: &[_], observed: &[_]| {
            fastrand::seed(self.seed); // the backoffs' jitter
            let environment = Environment::new(self.has_real_time);
            let process = Process::new(&environment);
            let world = process.run(async || (self.setup)().await);
            let world = TypedWorld { world, start: &self.start, check: &self.check };
            let trial = Trial::new(environment, &world, &requests, faults, self.given_up);
            trial.run(process, observed)
        };
        // With another seed, these are others.
        let pairs = if self.has_real_time { 40 } else { 200 };
        Search::new(&trial, self.seed, pairs).run()
    }
}

impl<Setup, Start, Check> fmt::Debug for Torture<Setup, Start, Check> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Torture")
            .field("given_up", &self.given_up)
            .field("seed", &self.seed)
            .field("has_real_time", &self.has_real_time)
            .finish_non_exhaustive()
    }
}
