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
use super::state::KeeperState;

/// The state shared by all handles to a keeper.
pub(super) struct KeeperShared {
    store: Arc<dyn Callable>,
    state: Mutex<KeeperState>,
    /// Wakes the background before its next timer.
    wake: Notify,
    /// The number of [`KeeperHandle`]s.
    handles: AtomicUsize,
}

/// The work that remains after a change of the state, to be done without the mutex.
pub(super) struct Effects {
    pub(super) deferred: SmallVec<[Deferred; 2]>,
    pub(super) start: Option<StartCall>,
    /// Whether the background has to run before its next timer.
    pub(super) wake: bool,
}

/// A call to start on the runtime of the thread that changed the state.
#[derive(Debug)]
pub(super) enum StartCall {
    /// Starts after other ready tasks have run, so that their commands are sent together.
    Gather(CallId),
    /// Starts immediately, because the batch is full.
    Call(Batch),
}

/// A call on a caller's runtime.
enum CallTask {
    Gather(CallGuard),
    Call(CallGuard, Abortable<BoxFuture<'static, Answers>>),
}

impl KeeperShared {
    pub(super) fn new(store: Arc<dyn Callable>, clock: Clock, max_batch: usize) -> Arc<Self> {
        let state = Mutex::new(KeeperState::new(clock, max_batch));
        Arc::new(Self { store, state, wake: Notify::new(), handles: AtomicUsize::new(0) })
    }

    /// Changes the state, then runs the resulting work and calls.
    pub(super) fn update<T>(self: &Arc<Self>, change: impl FnOnce(&mut KeeperState) -> T) -> T {
        let (value, start) = self.change(change);
        self.start_calls(start);
        value
    }

    /// Resolves when the background has to run before its next timer.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.handles.load(Ordering::Acquire) == 0
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.lock().is_stopped()
    }

    /// Changes the state, then runs the resulting work. The caller starts the call.
    pub(super) fn change<T>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut KeeperState) -> T,
    ) -> (T, Option<StartCall>) {
        let (value, Effects { deferred, start, wake }) = {
            let mut state = self.lock();
            let value = change(&mut state);
            (value, state.take_effects())
        };
        if wake {
            self.wake.notify_one();
        }
        deferred.into_iter().for_each(|deferred| deferred.run(self));
        (value, start)
    }

    fn lock(&self) -> MutexGuard<'_, KeeperState> {
        // Only the keeper's own code runs under the mutex.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a call. If it is answered immediately, also starts the next one.
    fn start_calls(self: &Arc<Self>, mut start: Option<StartCall>) {
        while let Some(call) = start.take() {
            let Ok(runtime) = runtime::Handle::try_current() else {
                self.hand_to_background(call);
                continue;
            };
            match call {
                StartCall::Gather(id) => {
                    let task = CallTask::Gather(CallGuard::new(self, id));
                    runtime.spawn(self.clone().run_calls(task));
                }
                StartCall::Call(batch) => {
                    let guard = CallGuard::new(self, batch.id);
                    let mut call = self.store.clone().call(batch);
                    // An in-memory store answers immediately, which needs no task.
                    match call.poll_unpin(&mut Context::from_waker(Waker::noop())) {
                        Poll::Ready(answers) => start = self.finish_call(guard, answers),
                        Poll::Pending => {
                            let (call, abort) = abortable(call);
                            start = self.change(|state| state.set_call_pending(guard.id, abort)).1;
                            runtime.spawn(self.clone().run_calls(CallTask::Call(guard, call)));
                        }
                    }
                }
            }
        }
    }

    /// Leaves a call, and those that would follow it, to the background, which has a runtime.
    pub(super) fn hand_to_background(self: &Arc<Self>, start: StartCall) {
        let mut next = Some(start);
        while let Some(start) = next {
            let id = match &start {
                StartCall::Gather(id) => *id,
                StartCall::Call(batch) => batch.id,
            };
            next = self.change(|state| state.requeue_dropped_call(id)).1;
        }
    }

    /// Makes calls one after another, while enough commands are queued to justify one.
    async fn run_calls(self: Arc<Self>, mut task: CallTask) {
        loop {
            let (guard, call) = match task {
                CallTask::Gather(guard) => {
                    yield_to_ready_tasks().await;
                    let (abort, registration) = AbortHandle::new_pair();
                    let (batch, start) =
                        self.change(|state| state.take_gathered_batch(guard.id, abort));
                    self.start_calls(start);
                    let Some(batch) = batch else {
                        return guard.finish();
                    };
                    (guard, self.call(batch, registration))
                }
                CallTask::Call(guard, call) => (guard, call),
            };
            let answers = call.await.unwrap_or(Err("the call was aborted"));
            task = match self.finish_call(guard, answers) {
                Some(StartCall::Gather(id)) => CallTask::Gather(CallGuard::new(&self, id)),
                Some(StartCall::Call(batch)) => {
                    let (abort, registration) = AbortHandle::new_pair();
                    let guard = CallGuard::new(&self, batch.id);
                    let start = self.change(|state| state.set_call_pending(batch.id, abort)).1;
                    self.start_calls(start);
                    CallTask::Call(guard, self.call(batch, registration))
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

    fn finish_call(self: &Arc<Self>, guard: CallGuard, answers: Answers) -> Option<StartCall> {
        let id = guard.id;
        guard.finish();
        self.change(|state| state.handle_answers(id, answers)).1
    }
}

/// Lets other ready tasks run. After tokio's `yield_now`, a task waits until its worker parks. This
/// function puts the task where other workers can take it, because the next handler may block this
/// one.
async fn yield_to_ready_tasks() {
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
struct CallGuard {
    shared: Arc<KeeperShared>,
    id: CallId,
    is_finished: bool,
}

impl CallGuard {
    fn new(shared: &Arc<KeeperShared>, id: CallId) -> Self {
        Self { shared: shared.clone(), id, is_finished: false }
    }

    fn finish(mut self) {
        self.is_finished = true;
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if !self.is_finished {
            self.shared.update(|state| state.requeue_dropped_call(self.id));
        }
    }
}

/// Keeps the background running; it ends when all handles are dropped.
pub(super) struct KeeperHandle(Arc<KeeperShared>);

impl KeeperHandle {
    pub(super) fn new(shared: Arc<KeeperShared>) -> Self {
        shared.handles.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Clone for KeeperHandle {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl Deref for KeeperHandle {
    type Target = Arc<KeeperShared>;

    fn deref(&self) -> &Arc<KeeperShared> {
        &self.0
    }
}

impl Drop for KeeperHandle {
    fn drop(&mut self) {
        if self.0.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.wake.notify_one();
        }
    }
}

impl std::fmt::Debug for KeeperHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeeperHandle")
    }
}
