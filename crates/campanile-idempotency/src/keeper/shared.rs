//! The keeper's state behind its mutex, and the calls on the callers' runtimes.

use std::future::poll_fn;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use campanile_core::Clock;
use futures_util::FutureExt;
use futures_util::future::{AbortHandle, AbortRegistration, Abortable, BoxFuture, abortable};
use smallvec::SmallVec;
use tokio::runtime;
use tokio::sync::Notify;

use super::calls::{Answers, Batch, CallId, Callable};
use super::deferred::Deferred;
use super::state::State;

/// The state shared by all handles to a keeper.
pub(super) struct Shared {
    store: Arc<dyn Callable>,
    state: Mutex<State>,
    /// Wakes the background before its next timer.
    wake: Notify,
    /// The number of [`Handle`]s.
    handles: AtomicUsize,
}

/// The work that remains after a change of the state, to be done without the mutex.
pub(super) struct After {
    pub(super) deferred: SmallVec<[Deferred; 2]>,
    pub(super) start: Option<Start>,
    /// Whether the background has to run before its next timer.
    pub(super) wake: bool,
}

/// A call to start on the runtime of the thread that changed the state.
#[derive(Debug)]
pub(super) enum Start {
    /// Starts after other ready tasks have run, so that their commands are sent together.
    Gather(CallId),
    /// Starts immediately, because the batch is full.
    Call(Batch),
}

/// A call on a caller's runtime.
enum Work {
    Gather(Begun),
    Call(Begun, Abortable<BoxFuture<'static, Answers>>),
}

impl Shared {
    pub(super) fn new(store: Arc<dyn Callable>, clock: Clock, max_batch: usize) -> Arc<Self> {
        let state = Mutex::new(State::new(clock, max_batch));
        Arc::new(Self { store, state, wake: Notify::new(), handles: AtomicUsize::new(0) })
    }

    /// Changes the state, then runs the resulting work and calls.
    pub(super) fn update<T>(self: &Arc<Self>, change: impl FnOnce(&mut State) -> T) -> T {
        let (value, start) = self.change(change);
        self.begin(start);
        value
    }

    /// Resolves when the background has to run before its next timer.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Returns whether all handles are dropped.
    pub(super) fn is_closed(&self) -> bool {
        self.handles.load(Ordering::Acquire) == 0
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.lock().is_stopped()
    }

    /// Changes the state, and returns the call to start.
    pub(super) fn change<T>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut State) -> T,
    ) -> (T, Option<Start>) {
        let (value, After { deferred, start, wake }) = {
            let mut state = self.lock();
            let value = change(&mut state);
            (value, state.after())
        };
        if wake {
            self.wake.notify_one();
        }
        deferred.into_iter().for_each(|deferred| deferred.run(self));
        (value, start)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Only the keeper's own code runs under the mutex.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a call. If it is answered immediately, also starts the next one.
    fn begin(self: &Arc<Self>, mut start: Option<Start>) {
        while let Some(begins) = start.take() {
            let Ok(runtime) = runtime::Handle::try_current() else {
                self.leave_to_background(begins);
                continue;
            };
            match begins {
                Start::Gather(id) => {
                    let work = Work::Gather(Begun::new(self, id));
                    runtime.spawn(self.clone().work(work));
                }
                Start::Call(batch) => {
                    let begun = Begun::new(self, batch.id);
                    let mut call = self.store.clone().call(batch);
                    // An in-memory store answers immediately, which needs no task.
                    match call.poll_unpin(&mut Context::from_waker(Waker::noop())) {
                        Poll::Ready(answers) => start = self.answered(begun, answers),
                        Poll::Pending => {
                            let (call, abort) = abortable(call);
                            start = self.change(|state| state.call_pending(begun.id, abort)).1;
                            runtime.spawn(self.clone().work(Work::Call(begun, call)));
                        }
                    }
                }
            }
        }
    }

    /// Leaves a call, and those that would follow it, to the background, which has a runtime.
    pub(super) fn leave_to_background(self: &Arc<Self>, start: Start) {
        let mut next = Some(start);
        while let Some(start) = next {
            let id = match &start {
                Start::Gather(id) => *id,
                Start::Call(batch) => batch.id,
            };
            next = self.change(|state| state.call_dropped(id)).1;
        }
    }

    /// Makes calls one after another, while enough commands are queued to justify one.
    async fn work(self: Arc<Self>, mut work: Work) {
        loop {
            let (begun, call) = match work {
                Work::Gather(begun) => {
                    let_ready_tasks_run().await;
                    let (abort, registration) = AbortHandle::new_pair();
                    let (batch, start) = self.change(|state| state.gathered(begun.id, abort));
                    self.begin(start);
                    let Some(batch) = batch else {
                        return begun.end();
                    };
                    (begun, self.call(batch, registration))
                }
                Work::Call(begun, call) => (begun, call),
            };
            let answers = call.await.unwrap_or(Err("the call was aborted"));
            work = match self.answered(begun, answers) {
                Some(Start::Gather(id)) => Work::Gather(Begun::new(&self, id)),
                Some(Start::Call(batch)) => {
                    let (abort, registration) = AbortHandle::new_pair();
                    let begun = Begun::new(&self, batch.id);
                    let start = self.change(|state| state.call_pending(batch.id, abort)).1;
                    self.begin(start);
                    Work::Call(begun, self.call(batch, registration))
                }
                None => return,
            };
        }
    }

    fn call(
        &self,
        batch: Batch,
        abort: AbortRegistration,
    ) -> Abortable<BoxFuture<'static, Answers>> {
        Abortable::new(self.store.clone().call(batch), abort)
    }

    fn answered(self: &Arc<Self>, begun: Begun, answers: Answers) -> Option<Start> {
        let id = begun.id;
        begun.end();
        self.change(|state| state.answered(id, answers)).1
    }
}

/// Lets other ready tasks run. After tokio's `yield_now`, a task waits until its worker parks. This
/// function puts the task where other workers can take it, because the next handler may block this
/// one.
async fn let_ready_tasks_run() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A call that runs on a caller's runtime. If the runtime is shut down, its tasks are dropped, and
/// the background makes the call instead.
struct Begun {
    shared: Arc<Shared>,
    id: CallId,
    has_ended: bool,
}

impl Begun {
    fn new(shared: &Arc<Shared>, id: CallId) -> Self {
        Self { shared: shared.clone(), id, has_ended: false }
    }

    fn end(mut self) {
        self.has_ended = true;
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.has_ended {
            self.shared.update(|state| state.call_dropped(self.id));
        }
    }
}

/// Keeps the background running; it ends when all handles are dropped.
pub(super) struct Handle(Arc<Shared>);

impl Handle {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        shared.handles.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl Deref for Handle {
    type Target = Arc<Shared>;

    fn deref(&self) -> &Arc<Shared> {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.0.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.wake.notify_one();
        }
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle")
    }
}
