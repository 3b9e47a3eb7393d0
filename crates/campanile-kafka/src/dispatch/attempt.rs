//! One attempt at one record: a handler that blocks or panics is alone with it.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use campanile_core::{BoxError, BoxableError, Clock, Output, Record};
use pin_project_lite::pin_project;
use tokio::sync::mpsc::UnboundedSender;
use tracing::Span;

use super::pace::is_long;
use super::seats::Place;
use super::strand::StrandId;
use crate::dead_letter::Unburied;
use crate::error::panic_text;
use crate::flood::Passage;
use crate::transaction::Answered;

/// That of the machine.
const CLOCK: Clock = Clock::boot();

/// How the work on a record ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The service answered.
    Processed {
        outputs: Vec<Output>,
    },
    /// The service answered, but nobody knows what is to be sent.
    Unsendable(BoxError),
    Failed(BoxError),
    Panicked(String),
    /// It is given up, and that is recorded.
    Skipped,
    /// Its dead letter is published, and that is recorded.
    Buried(Passage),
    /// Its dead letter is not.
    Unburied(Unburied),
    /// A copy of it is in a retry topic.
    Deferred,
    /// None is. Again after this time, or after the driver's own back-off.
    NotDeferred(Option<Duration>),
    /// The consumer stops at it, and its lock is let go.
    Left,
    /// The consumer pauses at it, and its lock is let go.
    Held,
}

/// Tells the dispatcher, once, how the work on a record ended.
pub(super) struct Report {
    pub(super) strand: StrandId,
    pub(super) reports: UnboundedSender<Reported>,
    /// Whether no poll has taken long so far.
    pub(super) quick: bool,
}

/// What the dispatcher is told.
pub(super) struct Reported {
    pub(super) strand: StrandId,
    pub(super) ended: Ended,
    pub(super) quick: bool,
}

impl Report {
    pub(super) fn send(self, ended: Ended) {
        // A dispatcher that is gone waits for nothing.
        let Self { strand, reports, quick } = self;
        let _ = reports.send(Reported { strand, ended, quick });
    }
}

pin_project! {
    /// A service's future, with what it means if it is dropped before its end.
    pub(super) struct Attempt<F> {
        #[pin]
        future: Option<F>,
        record: Record,
        // `None` once it has ended.
        report: Option<Report>,
        span: Span,
    }

    impl<F> PinnedDrop for Attempt<F> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            let _entered = this.span.enter();
            // Dropped by a revoke, by a shutdown or with the runtime. The layer must know before its
            // future goes: then the lock is released, and no failed attempt counted.
            if this.report.is_some() {
                this.record.set_interrupted();
            }
        }
    }
}

impl<F> Attempt<F> {
    pub(super) fn new(future: F, record: Record, report: Report, span: Span) -> Self {
        Self { future: Some(future), record, report: Some(report), span }
    }
}

impl<F, E> Attempt<F>
where
    F: Future<Output = Result<Answered, E>>,
    E: BoxableError,
{
    /// Polls it. Gives how it ended, and whom to tell. Never panics.
    pub(super) fn poll_once(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(Report, Ended)> {
        let mut this = self.project();
        let _entered = this.span.enter();
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let future = this.future.as_mut().as_pin_mut().expect("polled after its end");
            Poll::Ready(match ready!(future.poll(cx)) {
                Ok(Ok(outputs)) => Ended::Processed { outputs },
                Ok(Err(error)) => Ended::Unsendable(error),
                Err(error) => Ended::Failed(error.into()),
            })
        }));
        let mut ended = match polled {
            Ok(polled) => ready!(polled),
            Err(panic) => Ended::Panicked(panic_text(panic)),
        };
        // Before anybody is told: whatever the future holds is free when the next record begins.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| this.future.set(None))) {
            ended = Ended::Panicked(format!("a drop panicked: {}", panic_text(panic)));
        }
        if !matches!(ended, Ended::Processed { .. }) {
            this.span.record("otel.status_code", "ERROR");
        }
        Poll::Ready((this.report.take().expect("it ends once"), ended))
    }
}

impl<F, E> Future for Attempt<F>
where
    F: Future<Output = Result<Answered, E>>,
    E: BoxableError,
{
    type Output = ();

    /// In a task.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let start = CLOCK.now();
        let polled = self.as_mut().poll_once(cx);
        let quick = !is_long(CLOCK.now().saturating_sub(start));
        match polled {
            Poll::Ready((mut report, ended)) => {
                report.quick &= quick;
                report.send(ended);
                Poll::Ready(())
            }
            Poll::Pending => {
                let report = self.project().report.as_mut();
                report.expect("it goes on").quick &= quick;
                Poll::Pending
            }
        }
    }
}

/// One whose task it is, where it was before.
pub(super) struct Alone<F>(pub(super) Place<F>);

impl<F> Future for Alone<F>
where
    Attempt<F>: Future<Output = ()>,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().as_pin_mut().expect("it is begun with").poll(cx)
    }
}
