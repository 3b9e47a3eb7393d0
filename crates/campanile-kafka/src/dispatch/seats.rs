//! Handlers that the dispatcher's own task polls, while they wait.
//!
//! Each sits on a seat of its own and has a bell, which is its waker: it says whose turn it is and wakes
//! the leader. So a burst of answers wakes one task once, where a task for each would be woken many times.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use campanile_core::BoxableError;
use futures_util::task::{ArcWake, AtomicWaker, waker_ref};
use tokio::task::unconstrained;

use super::attempt::{Attempt, Ended, Report};
use super::strand::StrandId;
use crate::error::panic_text;
use crate::transaction::Answered;

/// So many empty seats at most are kept for the next ones.
const SPARE: usize = 256;

const SITS: &str = "somebody sits here until that has ended";

/// Boxed once for all that sit there, one after the other.
pub(super) type Place<F> = Pin<Box<Option<Attempt<F>>>>;

/// A handler that is polled by the leader, or room for one.
pub(super) struct Seat<F> {
    pub(super) place: Place<F>,
    bell: Arc<Bell>,
}

/// All of them.
pub(super) struct Seats<F> {
    /// Those that wait, each at its strand's index.
    taken: Vec<Option<Seat<F>>>,
    count: usize,
    spare: Vec<Seat<F>>,
    rings: Arc<Rings>,
    /// Whose turn it is in this round.
    turns: VecDeque<StrandId>,
}

/// Which bells have rung since the leader has looked.
#[derive(Default)]
struct Rings {
    ids: Mutex<Vec<StrandId>>,
    leader: AtomicWaker,
}

struct Bell {
    id: StrandId,
    is_rung: AtomicBool,
    rings: Arc<Rings>,
}

impl<F> Seats<F> {
    pub(super) fn new() -> Self {
        let (rings, turns) = (Arc::new(Rings::default()), VecDeque::new());
        Self { taken: Vec::new(), count: 0, spare: Vec::new(), rings, turns }
    }

    /// A seat for this attempt, which is to be polled.
    pub(super) fn seat(&mut self, id: StrandId, attempt: Attempt<F>) -> Seat<F> {
        let bell = || Bell { id, is_rung: AtomicBool::new(false), rings: self.rings.clone() };
        let Some(mut seat) = self.spare.pop() else {
            return Seat { place: Box::pin(Some(attempt)), bell: Arc::new(bell()) };
        };
        match Arc::get_mut(&mut seat.bell) {
            Some(free) => (free.id, *free.is_rung.get_mut()) = (id, false),
            // Somebody still has the waker of who sat here before.
            None => seat.bell = Arc::new(bell()),
        }
        seat.place.set(Some(attempt));
        seat
    }

    /// It waits until its bell rings.
    pub(super) fn wait(&mut self, id: StrandId, seat: Seat<F>) {
        let index = id.index();
        if self.taken.len() <= index {
            self.taken.resize_with(index + 1, || None);
        }
        self.taken[index] = Some(seat);
        self.count += 1;
    }

    /// It is empty.
    pub(super) fn clear(&mut self, seat: Seat<F>) {
        if self.spare.len() < SPARE {
            self.spare.push(seat);
        }
    }

    /// Begins a round of the leader's, which this wakes when a bell rings later. Whether any has.
    pub(super) fn look(&mut self, leader: &Waker) -> bool {
        self.rings.leader.register(leader);
        let mut ids = self.rings.ids.lock().unwrap_or_else(PoisonError::into_inner);
        self.turns.extend(ids.drain(..));
        !self.turns.is_empty()
    }

    /// The next whose bell has rung before this round.
    pub(super) fn next(&mut self) -> Option<(StrandId, Seat<F>)> {
        while let Some(id) = self.turns.pop_front() {
            if let Some(seat) = self.take(id.index(), |of| of == id) {
                // Acquires what wakers have written that found it rung.
                seat.bell.is_rung.swap(false, Ordering::AcqRel);
                return Some((id, seat));
            }
        }
        None
    }

    /// All that wait.
    pub(super) fn drain(&mut self) -> Vec<(StrandId, Place<F>)> {
        if self.count == 0 {
            return Vec::new();
        }
        let seats = (0..self.taken.len()).filter_map(|index| self.take(index, |_| true));
        seats.map(|seat| (seat.bell.id, seat.place)).collect()
    }

    fn take(&mut self, index: usize, of: impl FnOnce(StrandId) -> bool) -> Option<Seat<F>> {
        let seat = self.taken.get_mut(index)?.take_if(|seat| of(seat.bell.id))?;
        self.count -= 1;
        Some(seat)
    }
}

impl<F> Drop for Seats<F> {
    fn drop(&mut self) {
        for (_, place) in self.drain() {
            // A drop that panics is alone with it.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(place))) {
                panic_text(panic);
            }
        }
    }
}

impl<F, E> Seat<F>
where
    F: Future<Output = Result<Answered, E>>,
    E: BoxableError,
{
    /// Polls who sits here. Its bell wakes it; what the task may do until it should let others in is for all
    /// handlers together, so it is not counted.
    pub(super) fn poll(&mut self) -> Poll<(Report, Ended)> {
        let Self { place, bell } = self;
        let mut attempt = place.as_mut().as_pin_mut().expect(SITS);
        let polled = pin!(unconstrained(poll_fn(|cx| attempt.as_mut().poll_once(cx))))
            .poll(&mut Context::from_waker(&waker_ref(bell)));
        if polled.is_ready() {
            place.set(None);
        }
        polled
    }
}

impl ArcWake for Bell {
    fn wake_by_ref(bell: &Arc<Self>) {
        if !bell.is_rung.swap(true, Ordering::AcqRel) {
            let mut ids = bell.rings.ids.lock().unwrap_or_else(PoisonError::into_inner);
            ids.push(bell.id);
            drop(ids);
            bell.rings.leader.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::atomic::AtomicUsize;

    use campanile_core::{BoxError, Record};
    use futures_util::future::BoxFuture;
    use futures_util::task::noop_waker;
    use tokio::sync::mpsc;
    use tracing::Span;

    use super::*;

    type Handler = BoxFuture<'static, Result<Answered, BoxError>>;

    fn attempt(future: impl Future<Output = ()> + Send + 'static) -> Attempt<Handler> {
        let future: Handler = Box::pin(async move {
            future.await;
            Ok(Ok(Vec::new()))
        });
        let record = Record::builder("orders", 0, 0).build();
        let (reports, _) = mpsc::unbounded_channel();
        let report = Report { strand: StrandId::numbered(0), reports, quick: true };
        Attempt::new(future, record, report, Span::none())
    }

    /// Someone who waits once and keeps the waker.
    fn once(kept: &Arc<Mutex<Option<Waker>>>) -> impl Future<Output = ()> + Send + use<> {
        let kept = kept.clone();
        poll_fn(move |cx| match kept.lock().unwrap().replace(cx.waker().clone()) {
            None => Poll::Pending,
            Some(_) => Poll::Ready(()),
        })
    }

    #[test]
    fn a_bell_rings_once_for_each_poll_and_for_nobody_else() {
        let (mut seats, kept) = (Seats::new(), Arc::default());
        for n in 0..3 {
            let id = StrandId::numbered(n);
            let mut seat = seats.seat(id, attempt(pending()));
            if n == 1 {
                seat = seats.seat(id, attempt(once(&kept)));
            }
            assert!(seat.poll().is_pending());
            seats.wait(id, seat);
        }
        assert!(!seats.look(&noop_waker()));
        let waker = kept.lock().unwrap().clone().unwrap();
        waker.wake_by_ref();
        waker.wake();
        assert!(seats.look(&noop_waker()));
        let (id, mut seat) = seats.next().unwrap();
        assert_eq!(id, StrandId::numbered(1));
        assert!(seat.poll().is_ready());
        assert!(seats.next().is_none());
        seats.clear(seat);
    }

    #[test]
    fn one_that_is_woken_while_it_is_polled_has_its_turn_in_the_next_round() {
        let mut seats = Seats::new();
        let id = StrandId::numbered(0);
        let mut polls = 0;
        let mut seat = seats.seat(
            id,
            attempt(poll_fn(move |cx| {
                cx.waker().wake_by_ref();
                polls += 1;
                if polls < 3 { Poll::Pending } else { Poll::Ready(()) }
            })),
        );
        for _ in 1..3 {
            assert!(seat.poll().is_pending());
            seats.wait(id, seat);
            assert!(seats.next().is_none(), "the round has begun without it");
            assert!(seats.look(&noop_waker()));
            seat = seats.next().unwrap().1;
        }
        assert!(seat.poll().is_ready());
    }

    #[test]
    fn who_keeps_a_waker_wakes_nobody_who_sits_there_later() {
        let (mut seats, kept) = (Seats::new(), Arc::default());
        let (first, second) = (StrandId::numbered(0), StrandId::numbered(1));
        let mut seat = seats.seat(first, attempt(once(&kept)));
        assert!(seat.poll().is_pending());
        assert!(seat.poll().is_ready());
        seats.clear(seat);
        let mut seat = seats.seat(second, attempt(pending()));
        assert!(seat.poll().is_pending());
        seats.wait(second, seat);
        kept.lock().unwrap().take().unwrap().wake();
        seats.look(&noop_waker());
        assert!(seats.next().is_none());
    }

    #[test]
    fn all_that_wait_are_dropped_although_drops_panic() {
        struct Counts(Arc<AtomicUsize>);
        impl Drop for Counts {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
                panic!("a drop that panics");
            }
        }
        let (mut seats, drops) = (Seats::new(), Arc::new(AtomicUsize::new(0)));
        for n in 0..3 {
            let (id, counts) = (StrandId::numbered(n), Counts(drops.clone()));
            let mut seat = seats.seat(
                id,
                attempt(async move {
                    let _counts = counts;
                    pending::<()>().await;
                }),
            );
            assert!(seat.poll().is_pending());
            seats.wait(id, seat);
        }
        let mut seat = seats.seat(StrandId::numbered(3), attempt(ready(())));
        assert!(seat.poll().is_ready());
        drop(seats);
        assert_eq!(drops.load(Ordering::Relaxed), 3);
    }
}
