//! The task that has the dispatcher, and the one that takes it over.
//!
//! Handlers that are quick are run by the dispatcher's own task, the leader: a task for each would
//! cost more than the rest of the driver. Meanwhile the dispatcher lies on a desk. If a handler blocks
//! the leader, the deputy takes the dispatcher from there and goes on with it; the former leader's
//! task has nothing left but that one handler. So a handler that blocks is alone with it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use campanile_core::Clock;

use super::Dispatcher;
use super::attempt::Alone;
use super::seats::Seat;
use super::strand::StrandId;
use crate::error::ConsumerError;
use crate::routes::Target;
use crate::summary::Summary;
use crate::task::Task;
use crate::watch::Watch;

/// So many handlers at most are run until events are looked at.
const ROUND: u32 = 64;

/// So many rounds at most are made until other tasks are let in, and no more than take so long: the runtime
/// looks after timers and sockets between tasks.
const ROUNDS: u32 = 16;
const LONG: Duration = Duration::from_micros(200);

/// Serves until the signal or an error, and then until all has been drained and committed.
///
/// # Cancellation
/// Dropped, it takes the dispatcher with it, wherever that is.
pub(crate) async fn serve<S: Target>(
    mut dispatcher: Dispatcher<S>,
) -> Result<Summary, ConsumerError> {
    let closed = dispatcher.closed();
    let (things, watch) = (Mutex::new(Things::default()), dispatcher.watch());
    let desk = Occupied(Arc::new(Desk { things, watch }));
    let leader = Leader::new(desk.0.clone(), Box::new(dispatcher));
    {
        let mut things = desk.0.things();
        things.leader = Some(Task::spawn(leader));
    }
    if let Ok(result) = closed.await {
        return result;
    }
    let leader = desk.0.things().leader.take();
    leader.expect("there is always a leader").join().await;
    unreachable!("a leader ends with its dispatcher closed, or has panicked")
}

struct Desk<S: Target> {
    things: Mutex<Things<S>>,
    watch: Arc<Watch>,
}

struct Things<S: Target> {
    /// Here while the leader runs a handler.
    dispatcher: Option<Box<Dispatcher<S>>>,
    /// Who has it, and who may take it over.
    leader: Option<Task<()>>,
    deputy: Option<Task<()>>,
    /// Whether the deputy waits. Before it was polled for the first time, it may be next on the thread that
    /// the leader is about to block.
    ready: bool,
    /// How often it was taken over: so a former leader knows that what lies here is not its own.
    terms: u64,
    /// Nobody works here any more.
    cleared: bool,
}

impl<S: Target> Desk<S> {
    fn things(&self) -> MutexGuard<'_, Things<S>> {
        self.things.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Target> Default for Things<S> {
    fn default() -> Self {
        Self {
            dispatcher: None,
            leader: None,
            deputy: None,
            ready: false,
            terms: 0,
            cleared: false,
        }
    }
}

/// Clears the desk when it is dropped, which ends all that works at it.
struct Occupied<S: Target>(Arc<Desk<S>>);

impl<S: Target> Drop for Occupied<S> {
    fn drop(&mut self) {
        let mut things = self.0.things();
        things.cleared = true;
        let taken = (things.dispatcher.take(), things.leader.take(), things.deputy.take());
        // What is dropped may be the user's, and takes its time.
        drop(things);
        drop(taken);
    }
}

/// The task that has the dispatcher.
struct Leader<S: Target> {
    desk: Arc<Desk<S>>,
    term: u64,
    /// `None` once the deputy has taken it over: then this is the task of its last handler.
    dispatcher: Option<Box<Dispatcher<S>>>,
    /// That handler.
    alone: Option<Alone<S::Future>>,
    clock: Clock,
}

impl<S: Target> Leader<S> {
    fn new(desk: Arc<Desk<S>>, dispatcher: Box<Dispatcher<S>>) -> Self {
        let term = desk.things().terms;
        Self { desk, term, dispatcher: Some(dispatcher), alone: None, clock: Clock::boot() }
    }

    /// Dispatches what is due. Whether there was anything.
    fn dispatch(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        if let Some(dispatcher) = &mut self.dispatcher {
            dispatcher.again();
        }
        for _ in 0..ROUND {
            let Some(dispatcher) = &mut self.dispatcher else {
                break;
            };
            let Some((id, seat)) = dispatcher.next(cx, &mut any) else {
                break;
            };
            self.run(id, seat);
        }
        any
    }

    /// Polls a handler here. If that takes long, the dispatcher is taken over meanwhile.
    fn run(&mut self, id: StrandId, mut seat: Seat<S::Future>) {
        let timed = self.dispatcher.as_mut().is_some_and(|dispatcher| dispatcher.is_timed(id));
        if !self.put_down() {
            return;
        }
        self.desk.watch.begin();
        let start = timed.then(|| self.clock.now());
        let polled = seat.poll();
        let took = start.map(|start| self.clock.now().saturating_sub(start));
        self.take_up();
        match (&mut self.dispatcher, polled) {
            (Some(dispatcher), Poll::Ready((_, ended))) => {
                dispatcher.ended_here(id, seat, ended, took);
            }
            (Some(dispatcher), Poll::Pending) => dispatcher.goes_on(id, seat, took),
            (None, Poll::Ready((mut report, ended))) => {
                report.quick = false;
                report.send(ended);
            }
            // It is polled at once again, with the waker of this task.
            (None, Poll::Pending) => self.alone = Some(Alone(seat.place)),
        }
    }

    /// Takes the dispatcher from the desk, if it was not taken over.
    fn take_up(&mut self) {
        let mut things = self.desk.things();
        if things.terms == self.term {
            self.desk.watch.end();
            self.dispatcher = things.dispatcher.take();
        }
    }

    /// Puts the dispatcher on the desk. Where nobody works any more, it is dropped.
    fn put_down(&mut self) -> bool {
        let dispatcher = self.dispatcher.take();
        let mut things = self.desk.things();
        if things.cleared {
            return false;
        }
        things.dispatcher = dispatcher;
        true
    }

    /// Whether there is a deputy who waits. If not, there will be one when this task is polled again.
    fn has_deputy(&self) -> bool {
        let mut things = self.desk.things();
        if things.deputy.is_none() && !things.cleared {
            things.deputy = Some(Task::spawn(deputy(self.desk.clone())));
        }
        things.ready
    }
}

impl<S: Target> Future for Leader<S> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.dispatcher.is_some() && !this.has_deputy() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let start = this.clock.now();
        for round in 0..ROUNDS {
            if round > 0 && this.clock.now().saturating_sub(start) > LONG {
                break;
            }
            let Some(dispatcher) = &mut this.dispatcher else {
                return match &mut this.alone {
                    Some(alone) => Pin::new(alone).poll(cx),
                    None => Poll::Ready(()),
                };
            };
            let looked = dispatcher.look(cx);
            let dispatched = this.dispatch(cx);
            let Some(dispatcher) = &mut this.dispatcher else {
                // It was taken over: whoever did may have cancelled this task since.
                break;
            };
            let settled = dispatcher.settle(cx);
            if dispatcher.is_closed() {
                dispatcher.end();
                return Poll::Ready(());
            }
            if !(looked || dispatched || settled) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Takes the dispatcher over when a handler has blocked the leader.
async fn deputy<S: Target>(desk: Arc<Desk<S>>) {
    desk.things().ready = true;
    let dispatcher = loop {
        desk.watch.stuck().await;
        if let Some(dispatcher) = desk.take_over() {
            break dispatcher;
        }
    };
    Leader::new(desk, dispatcher).await;
}

impl<S: Target> Desk<S> {
    /// The dispatcher, if a handler is still stuck. The deputy is the leader then.
    fn take_over(&self) -> Option<Box<Dispatcher<S>>> {
        let mut things = self.things();
        let mut dispatcher = things.dispatcher.take_if(|_| self.watch.is_stuck())?;
        things.terms += 1;
        // Its handler is no run of the leader's any more.
        self.watch.end();
        things.ready = false;
        let deputy = things.deputy.take();
        let leader = std::mem::replace(&mut things.leader, deputy);
        dispatcher.taken_over(leader.expect("there is always a leader"));
        Some(dispatcher)
    }
}
