//! One task between the intake and the service.
//!
//! Each partition has a lane, and the records that are processed in order are a strand of it, of which
//! one at a time is at work. The strands take turns. A record is chosen first; only then the service
//! that it needs is polled ready and called. Its future runs as a task of its own, so that a handler
//! which blocks or panics is alone with it; those that are quick share the dispatcher's.

mod attempt;
mod board;
mod desk;
mod drain;
mod lane;
mod pace;
mod seats;
mod span;
mod stalls;
mod store;
mod strand;
mod trouble;
mod turns;
mod waits;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use campanile_core::BoxError;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::oneshot;
use tokio::time::Sleep;

use self::attempt::{Alone, Attempt, Ended, Reported};
use self::board::Board;
pub(crate) use self::desk::serve;
pub(crate) use self::drain::LET_GO;
use self::seats::{Seat, Seats};
use self::strand::StrandId;
use crate::consumer::Policies;
use crate::error::{ConsumerError, panic_text};
use crate::handle::{Gate, Shutdown};
use crate::intake::{Event, Intake};
use crate::routes::Target;
use crate::status;
use crate::summary::Summary;
use crate::task::Task;
use crate::watch::Watch;

/// How long the consumer may take to commit and to leave the group. A broker that cannot be reached
/// holds nobody up for longer: the thread is left behind, and ends when librdkafka does.
const CLOSE: Duration = Duration::from_secs(5);

/// The most events, and the most ends of records, that are taken at once.
const TAKE: usize = 256;

pub(crate) struct Dispatcher<S: Target> {
    service: S,
    /// `None` once it has come.
    signal: Option<BoxFuture<'static, ()>>,
    board: Board,
    intake: Intake,
    reports: UnboundedReceiver<Reported>,
    stage: Stage,
    error: Option<ConsumerError>,
    group: Arc<str>,
    drain_timeout: Duration,
    revoke_timeout: Duration,
    /// Futures that are polled here.
    seats: Seats<S::Future>,
    /// Whose is at this moment.
    here: Option<StrandId>,
    /// Whether one that was woken is polled before one that is due.
    woken_first: bool,
    /// Who waits for the end.
    closed: Option<oneshot::Sender<Result<Summary, ConsumerError>>>,
    events: Vec<Event>,
    reported: Vec<Reported>,
}

enum Stage {
    Serving,
    /// Nothing more is begun, and what is at work may end.
    Draining,
    /// The intake commits and leaves the group, until then at most.
    Closing(Pin<Box<Sleep>>),
    Closed,
}

/// How long things may take.
pub(crate) struct Timeouts {
    pub(crate) drain: Duration,
    pub(crate) revoke: Duration,
}

impl<S: Target> Dispatcher<S> {
    pub(crate) fn new(
        service: S,
        signal: BoxFuture<'static, ()>,
        gate: Gate,
        intake: Intake,
        policies: Policies,
        group: String,
        timeouts: Timeouts,
    ) -> Self {
        let (sender, reports) = mpsc::unbounded_channel();
        Self {
            service,
            signal: Some(signal),
            board: Board::new(policies, gate, sender),
            intake,
            reports,
            stage: Stage::Serving,
            error: None,
            group: group.into(),
            drain_timeout: timeouts.drain,
            revoke_timeout: timeouts.revoke,
            seats: Seats::new(),
            here: None,
            woken_first: false,
            closed: None,
            events: Vec::new(),
            reported: Vec::new(),
        }
    }

    /// Resolves when it is closed.
    fn closed(&mut self) -> oneshot::Receiver<Result<Summary, ConsumerError>> {
        let (closed, end) = oneshot::channel();
        self.closed = Some(closed);
        end
    }

    /// Looks what has come. Whether anything has changed.
    fn look(&mut self, cx: &mut Context<'_>) -> bool {
        let mut changed = self.poll_signal(cx);
        changed |= self.poll_events(cx);
        changed |= self.poll_reports(cx);
        changed |= self.seats.look(cx.waker());
        if !self.board.is_drained() {
            self.leave_seats();
        }
        changed |= self.board.poll(cx);
        changed | self.heed_handles()
    }

    /// After what was due was dispatched. Whether anything has changed.
    fn settle(&mut self, cx: &mut Context<'_>) -> bool {
        self.intake.finished(self.board.take_finished());
        self.poll_stage(cx)
    }

    fn is_closed(&self) -> bool {
        matches!(self.stage, Stage::Closed)
    }

    /// It is closed: gives the result to who waits for it.
    fn end(&mut self) {
        let summary = self.board.summary();
        tracing::info!(?summary, error = self.error.is_some(), "served");
        let result = self.error.take().map_or(Ok(summary), Err);
        if let Some(closed) = self.closed.take() {
            // Who does not wait any more drops this, too.
            let _ = closed.send(result);
        }
    }

    fn poll_signal(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(signal) = &mut self.signal else {
            return false;
        };
        let come = signal.as_mut().poll(cx).is_ready();
        if come {
            self.signal = None;
            self.stop(None);
        }
        come
    }

    /// Ends as a handle has asked for since.
    fn heed_handles(&mut self) -> bool {
        let Some(how) = self.board.take_shutdown() else {
            return false;
        };
        self.stop(None);
        if how == Shutdown::Now {
            self.board.hurry();
        }
        true
    }

    fn poll_events(&mut self, cx: &mut Context<'_>) -> bool {
        let mut events = std::mem::take(&mut self.events);
        let polled = self.intake.poll_events(cx, &mut events, TAKE);
        for event in events.drain(..) {
            match event {
                Event::Assigned(slot) => {
                    if let Err(error) = self.board.assigned(slot) {
                        self.stop(Some(ConsumerError::Config(error)));
                    }
                }
                Event::Records(records) => {
                    if let Err(error) = self.board.received(records) {
                        self.stop(Some(error));
                    }
                }
                Event::Revoked { slots, lost, done } => {
                    let timeout = if lost { Duration::ZERO } else { self.revoke_timeout };
                    self.board.revoked(slots, timeout, done);
                }
                Event::Room => self.board.go_on(),
                Event::Tick => self.board.look(),
                Event::Failed(error) => self.stop(Some(error)),
            }
        }
        self.events = events;
        match polled {
            Poll::Ready(0) => self.intake_ended(),
            Poll::Ready(_) => true,
            Poll::Pending => false,
        }
    }

    fn poll_reports(&mut self, cx: &mut Context<'_>) -> bool {
        let mut reported = std::mem::take(&mut self.reported);
        let any = self.reports.poll_recv_many(cx, &mut reported, TAKE).is_ready();
        for Reported { strand, ended, quick } in reported.drain(..) {
            if matches!(ended, Ended::Processed { .. })
                && let Some(pace) = self.board.pace(strand)
            {
                pace.ended(quick);
            }
            self.ended(strand, ended);
        }
        self.reported = reported;
        any
    }

    /// The work on a record has ended.
    fn ended(&mut self, id: StrandId, ended: Ended) {
        if let Some(error) = self.board.ended(id, ended) {
            self.stop(Some(error));
        }
    }

    /// From now on each has a task, which can be cancelled and waited for.
    fn leave_seats(&mut self) {
        for (id, place) in self.seats.drain() {
            self.board.has(id, Task::spawn(Alone(place)));
        }
    }

    /// Whether this one's future is to be polled here.
    fn is_here(&mut self, id: StrandId) -> bool {
        self.board.is_drained() && self.board.pace(id).is_some_and(|pace| pace.is_quick())
    }

    /// Whether the poll of this one's future here is to be timed.
    fn is_timed(&mut self, id: StrandId) -> bool {
        self.board.pace(id).is_some_and(|pace| pace.is_timed())
    }

    fn watch(&self) -> Arc<Watch> {
        self.intake.watch()
    }

    /// Services that were not ready are to be asked again.
    fn again(&mut self) {
        self.board.turns().again();
    }

    /// The next future that is to be polled here: in turns one that was woken, and that of a record which
    /// is due. `any`: whether there was anything.
    fn next(
        &mut self,
        cx: &mut Context<'_>,
        any: &mut bool,
    ) -> Option<(StrandId, Seat<S::Future>)> {
        self.woken_first = !self.woken_first;
        let woken = if self.woken_first { self.woken() } else { None };
        let next = woken.or_else(|| self.call(cx, any)).or_else(|| self.woken());
        self.here = next.as_ref().map(|(id, _)| *id);
        *any |= next.is_some();
        next
    }

    /// The next that was woken. Those with long polls are given a task each before the next one.
    fn woken(&mut self) -> Option<(StrandId, Seat<S::Future>)> {
        while let Some((id, seat)) = self.seats.next() {
            if self.is_here(id) {
                return Some((id, seat));
            }
            self.board.has(id, Task::spawn(Alone(seat.place)));
        }
        None
    }

    /// Calls the services with one record after the other, as long as one is due whose service is ready.
    /// Ends at one whose future is to be polled here. `any`: whether there was another.
    fn call(
        &mut self,
        cx: &mut Context<'_>,
        any: &mut bool,
    ) -> Option<(StrandId, Seat<S::Future>)> {
        if self.intake.is_full_of_outputs() {
            self.board.hold_back();
        }
        while let Some(id) = self.board.next() {
            let route = self.service.route(self.board.due(id));
            if self.board.turns().is_full(route) {
                self.board.turns().pass(route);
                continue;
            }
            match self.poll_ready(route, cx) {
                Poll::Ready(Ok(())) => *any = true,
                Poll::Pending => {
                    self.board.turns().pass(route);
                    continue;
                }
                Poll::Ready(Err(error)) => {
                    self.stop(Some(ConsumerError::Service(error)));
                    *any = true;
                    return None;
                }
            }
            let (record, report) = self.board.begin(id);
            let span = span::record(&record, &self.group);
            let call = || self.service.call(route, record.clone());
            let called = span.in_scope(|| catch_unwind(AssertUnwindSafe(call)));
            match called {
                Ok(future) if self.is_here(id) => {
                    let attempt = Attempt::new(future, record, report, span);
                    return Some((id, self.seats.seat(id, attempt)));
                }
                Ok(future) => {
                    let task = Task::spawn(Attempt::new(future, record, report, span));
                    self.board.has(id, task);
                }
                Err(panic) => self.ended(id, Ended::Panicked(panic_text(panic))),
            }
        }
        None
    }

    fn poll_ready(&mut self, route: usize, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let poll = AssertUnwindSafe(|| self.service.poll_ready(route, cx));
        catch_unwind(poll).unwrap_or_else(|panic| {
            let text = format!("poll_ready panicked: {}", panic_text(panic));
            Poll::Ready(Err(text.into()))
        })
    }

    /// A future that was polled here, for so long if that was timed, has ended.
    fn ended_here(
        &mut self,
        id: StrandId,
        seat: Seat<S::Future>,
        ended: Ended,
        took: Option<Duration>,
    ) {
        self.ran(id, took);
        self.seats.clear(seat);
        self.ended(id, ended);
    }

    /// It waits: here, or in a task of its own if polls like this are worth one.
    fn goes_on(&mut self, id: StrandId, seat: Seat<S::Future>, took: Option<Duration>) {
        self.ran(id, took);
        if self.is_here(id) {
            self.seats.wait(id, seat);
        } else {
            self.board.has(id, Task::spawn(Alone(seat.place)));
        }
    }

    fn ran(&mut self, id: StrandId, took: Option<Duration>) {
        self.here = None;
        if let Some(pace) = self.board.pace(id) {
            pace.ran(took);
        }
    }

    /// The future that is polled by this task does not end.
    fn taken_over(&mut self, task: Task<()>) {
        if let Some(id) = self.here.take() {
            if let Some(pace) = self.board.pace(id) {
                pace.slow();
            }
            self.board.has(id, task);
        }
    }

    fn poll_stage(&mut self, cx: &mut Context<'_>) -> bool {
        match &mut self.stage {
            Stage::Draining if self.board.is_drained() => {
                self.intake.close();
                self.board.vitals().enter(status::Stage::Closing);
                self.stage = Stage::Closing(Box::pin(tokio::time::sleep(CLOSE)));
                true
            }
            Stage::Closing(sleep) => {
                let late = sleep.as_mut().poll(cx).is_ready();
                if late {
                    tracing::warn!("the brokers do not answer: the last commit is uncertain");
                    self.stage = Stage::Closed;
                }
                late
            }
            _ => false,
        }
    }

    /// Begins nothing more. The first error is the one that is told.
    fn stop(&mut self, error: Option<ConsumerError>) {
        if let Some(error) = error {
            self.error.get_or_insert(error);
        }
        if matches!(self.stage, Stage::Serving) {
            self.stage = Stage::Draining;
            self.board.vitals().enter(status::Stage::Draining);
            self.intake.stop_reading();
            self.board.stop(self.drain_timeout);
        }
    }

    /// The consumer is closed.
    fn intake_ended(&mut self) -> bool {
        if matches!(self.stage, Stage::Serving) {
            let what = "the consumer's thread has panicked";
            self.stop(Some(ConsumerError::kafka(what, None)));
        }
        match self.stage {
            // Its end is all that was waited for.
            Stage::Closing(_) => {
                self.stage = Stage::Closed;
                true
            }
            // What is at work may still end.
            _ => false,
        }
    }
}
