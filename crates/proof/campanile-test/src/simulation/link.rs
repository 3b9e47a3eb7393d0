//! The network between a process and the server.
//!
//! It delays requests, loses them or their answers, cuts connections within an answer, delivers requests
//! late, and refuses connections.

use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use campanile_core::State;
use campanile_history::{FaultKind, Peer};
use fastrand::Rng;
use tokio::io::{AsyncWriteExt, BufReader, DuplexStream, WriteHalf, split};
use tokio::time::sleep;

use super::World;
use super::server::{Granted, Requests, Server};
use super::watched::Watched;

/// The connections of a process to a server.
#[derive(Clone)]
pub struct Link<S>(Arc<Inner<S>>);

struct Inner<S> {
    process: String,
    world: World,
    server: S,
    state: Mutex<LinkState>,
    /// Changes when all connections are cut.
    cuts: Watched<u64>,
}

struct LinkState {
    random: Rng,
    condition: Condition,
    /// The number of changes of the condition.
    changes: u64,
    is_healed: bool,
    /// When the current fault began.
    broken_since: Option<u64>,
    /// The locks that were granted without an answer that arrived, and when.
    undelivered: Vec<(Granted, u64)>,
    /// A reply that was lost, if the server [keeps](Server::is_reply_kept) it.
    stale: Vec<u8>,
    /// Whether a connection is no longer answered, if the server [keeps](Server::is_silence_kept) that.
    is_silent: bool,
}

/// What the link does to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Working,
    /// Each request has a fault of its own.
    Flaky,
    /// Nothing arrives.
    Silent,
    /// All connections are cut, and new ones are refused.
    Down,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    Answered,
    /// The answer takes this long.
    Slow(Duration),
    /// The connection is cut before the request arrives.
    CutBefore,
    /// The connection is cut after the request was executed.
    CutAfter,
    /// The connection is cut within the answer.
    CutWithin,
    /// Neither this request nor a later one arrives.
    SilentBefore,
    /// The request is executed, and no answer arrives.
    SilentAfter,
    /// As `SilentAfter`, and a part of the answer has arrived.
    SilentWithin,
    /// The connection leads nowhere, and the request arrives after this time.
    Late(Duration),
}

impl Delivery {
    /// Whether the client receives nothing more.
    fn is_silent(self) -> bool {
        use Delivery::{Late, SilentAfter, SilentBefore, SilentWithin};
        matches!(self, SilentBefore | SilentAfter | SilentWithin | Late(_))
    }
}

impl<S: Server> Link<S> {
    /// Creates a link that works.
    pub fn new(process: &str, world: World, server: S, seed: u64) -> Self {
        let state = LinkState {
            random: Rng::with_seed(seed),
            condition: Condition::Working,
            changes: 0,
            is_healed: false,
            broken_since: None,
            undelivered: Vec::new(),
            stale: Vec::new(),
            is_silent: false,
        };
        Self(Arc::new(Inner {
            process: process.into(),
            world,
            server,
            state: Mutex::new(state),
            cuts: Watched::new(0),
        }))
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server at the other end.
    pub fn server(&self) -> &S {
        &self.0.server
    }

    /// Checks whether new connections are refused.
    pub fn is_down(&self) -> bool {
        self.state().condition == Condition::Down
    }

    /// Changes the condition at random until the link is healed.
    pub fn inject_faults(&self) {
        let link = self.clone();
        let plan = self.0.world.plan.clone();
        tokio::spawn(async move {
            loop {
                let (working, broken) = {
                    let random = &mut link.state().random;
                    let working =
                        plan.ttl.mul_f64((0.2 + random.f64() * 4.0) / plan.fault_rate.max(0.1));
                    (working, plan.ttl.mul_f64(random.f64().powi(2) * 2.0))
                };
                sleep(working).await;
                if link.state().is_healed {
                    return;
                }
                link.break_for(broken);
                sleep(broken).await;
            }
        });
    }

    /// Breaks the link for this time.
    pub fn break_for(&self, duration: Duration) {
        let condition = *self
            .state()
            .random
            .choice(&[Condition::Flaky, Condition::Flaky, Condition::Silent, Condition::Down])
            .expect("not empty");
        self.change(condition);
        let (link, changes) = (self.clone(), self.state().changes);
        tokio::spawn(async move {
            sleep(duration).await;
            if link.state().changes == changes {
                link.change(Condition::Working);
            }
        });
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.state().is_healed = true;
        self.change(Condition::Working);
    }

    fn change(&self, condition: Condition) {
        let mut state = self.state();
        let now = self.0.world.recorder.now();
        if let Some(since) = state.broken_since.take() {
            self.record_cut(since, self.0.server.availability().recovery());
        }
        state.changes += 1;
        state.condition = condition;
        if condition != Condition::Working {
            state.broken_since = Some(now);
        }
        drop(state);
        if condition == Condition::Down {
            self.0.cuts.set(self.0.cuts.get() + 1);
        }
    }

    fn record_cut(&self, from: u64, recovery: u64) {
        let process = Some(self.0.process.clone());
        let cut = FaultKind::NetworkCut { process, peer: Peer::Store };
        self.0.world.record_fault(from, recovery, cut);
    }

    /// Draws the delay of a request and its delivery.
    fn draw(&self) -> (Duration, Delivery) {
        let ttl = self.0.world.plan.ttl;
        let mut state = self.state();
        let condition = state.condition;
        let random = &mut state.random;
        let delay = Duration::from_micros(random.u64(0..3_000));
        let delivery = match (condition, random.u8(..100)) {
            (Condition::Silent, _) => Delivery::SilentBefore,
            (Condition::Working | Condition::Down, _) | (Condition::Flaky, ..25) => {
                Delivery::Answered
            }
            (Condition::Flaky, 25..40) => Delivery::Slow(ttl.mul_f64(random.f64() / 8.0)),
            (Condition::Flaky, 40..55) => Delivery::CutBefore,
            (Condition::Flaky, 55..70) => Delivery::CutAfter,
            (Condition::Flaky, 70..76) => Delivery::CutWithin,
            (Condition::Flaky, 76..82) => Delivery::SilentBefore,
            (Condition::Flaky, 82..90) => Delivery::SilentAfter,
            (Condition::Flaky, 90..95) => Delivery::SilentWithin,
            (Condition::Flaky, 95..) => Delivery::Late(ttl.mul_f64(random.f64() * 2.0)),
        };
        let delivery = if state.is_silent { Delivery::SilentBefore } else { delivery };
        state.is_silent = delivery.is_silent() && self.0.server.is_silence_kept();
        (delay, delivery)
    }

    /// Answers the requests of a connection until it is closed. `is_open` says whether the client
    /// still has it.
    pub async fn serve(self, stream: DuplexStream, is_open: impl Fn() -> bool) {
        let cuts = self.0.cuts.get();
        let availability = self.0.server.availability();
        let restarts = availability.restarts();
        let (reader, mut replies) = split(stream);
        let mut is_silent = false;
        let is_stopped = tokio::select! {
            biased;
            _ = self.0.cuts.wait_for(|now| now != cuts) => false,
            () = availability.stopped(restarts) => true,
            _ = self.answer_all(BufReader::new(reader), &mut replies, restarts, is_open, &mut is_silent) => {
                false
            }
        };
        if is_stopped && !is_silent && self.state().condition == Condition::Working {
            let _ = replies.write_all(&self.0.server.farewell()).await;
        }
    }

    /// Returns when the connection is to be closed.
    async fn answer_all(
        &self,
        mut requests: Requests,
        replies: &mut WriteHalf<DuplexStream>,
        restarts: u64,
        is_open: impl Fn() -> bool,
        is_silent: &mut bool,
    ) -> std::io::Result<()> {
        let server = &self.0.server;
        let mut session = S::Session::default();
        while let Some(request) = server.read(&session, &mut requests).await? {
            let (delay, delivery) = self.draw();
            *is_silent = delivery.is_silent();
            sleep(delay).await;
            match delivery {
                Delivery::CutBefore => return Ok(()),
                Delivery::SilentBefore => pending().await,
                Delivery::Late(after) => {
                    self.execute_later(session, request, after);
                    return pending().await;
                }
                Delivery::Slow(delay) => sleep(delay).await,
                _ => {}
            }
            if !server.availability().answers(restarts).await {
                return Ok(());
            }
            server.admit(&mut session, &request).await;
            // A client that closes a connection drops what was not delivered. Even an empty write fails
            // then.
            if !is_open() || replies.write(&[]).await.is_err() {
                return Ok(());
            }
            let (reply, granted) = server.execute(&mut session, &request);
            let at = self.0.world.recorder.now();
            self.state().undelivered.extend(granted.iter().map(|lock| (lock.clone(), at)));
            match delivery {
                Delivery::CutAfter => {
                    if server.is_reply_kept(&request) {
                        self.state().stale = reply;
                    }
                    return Ok(());
                }
                Delivery::SilentAfter => pending().await,
                Delivery::CutWithin | Delivery::SilentWithin => {
                    let length = self.state().random.usize(..reply.len());
                    replies.write_all(&reply[..length]).await?;
                    if delivery == Delivery::CutWithin {
                        return Ok(());
                    }
                    pending().await
                }
                _ => {}
            }
            if server.is_reply_kept(&request) {
                let stale = std::mem::take(&mut self.state().stale);
                replies.write_all(&stale).await?;
            }
            replies.write_all(&reply).await?;
            self.state().undelivered.retain(|(lock, _)| !granted.contains(lock));
        }
        Ok(())
    }

    fn execute_later(&self, mut session: S::Session, request: S::Request, after: Duration) {
        let (link, from) = (self.clone(), self.0.world.recorder.now());
        let restarts = self.0.server.availability().restarts();
        tokio::spawn(async move {
            sleep(after).await;
            let server = &link.0.server;
            if !server.availability().answers(restarts).await {
                return;
            }
            server.admit(&mut session, &request).await;
            if server.availability().restarts() == restarts {
                let (_, granted) = server.execute(&mut session, &request);
                // It may arrive after its cancel, also if an earlier try was granted the same lock.
                link.state().undelivered.retain(|(lock, _)| !granted.contains(lock));
                link.record_cut(from, 0);
            }
        });
    }

    /// Finds a lock that was granted without an answer, and is still held although the process has
    /// settled all its locks.
    pub fn abandoned_lock(&self) -> Option<String> {
        // The time for which a keeper repeats a cancel that is not answered.
        const CANCEL_PERIOD: u64 = 60_000_000;
        let since = self.0.world.recorder.now().saturating_sub(CANCEL_PERIOD);
        let state = self.state();
        let is_held = |((key, owner), at): &&(Granted, u64)| {
            let entry = self.0.server.entry(key);
            let entry = entry.filter(|entry| entry.state() == State::Processing);
            *at > since && entry.is_some_and(|entry| entry.owner() == Some(*owner))
        };
        let ((key, _), _) = state.undelivered.iter().find(is_held)?;
        Some(format!("{} has abandoned the lock of {}", self.0.process, key.digest_hex()))
    }
}

impl<S> fmt::Debug for Link<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.0.process).finish()
    }
}
