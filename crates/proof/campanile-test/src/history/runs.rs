//! The layer that records runs.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use campanile_core::Request;
use campanile_history::{Effect, Event};
use tower_layer::Layer;
use tower_service::Service;

use super::HistoryRecorder;
use super::recorder::place;
use super::run::RunId;

/// Records the begin and the end of each run of the inner service. Created by
/// [`HistoryRecorder::runs`].
///
/// It belongs directly inside the idempotency layer: of a layer between them, the history would not
/// show that it failed. A handler that wants its effect recorded calls
/// [`effect`](HistoryRecorder::effect).
#[derive(Clone, Debug)]
pub struct RunsLayer {
    recorder: HistoryRecorder,
}

/// The service of [`RunsLayer`].
#[derive(Clone, Debug)]
pub struct RecordRuns<S> {
    inner: S,
    recorder: HistoryRecorder,
}

impl RunsLayer {
    pub(super) fn new(recorder: HistoryRecorder) -> Self {
        Self { recorder }
    }
}

impl<S> Layer<S> for RunsLayer {
    type Service = RecordRuns<S>;

    fn layer(&self, inner: S) -> RecordRuns<S> {
        RecordRuns { inner, recorder: self.recorder.clone() }
    }
}

impl HistoryRecorder {
    /// Finds the number of this request's run in its process, for an effect that names its run. `None`
    /// if the request has not passed [`RunsLayer`].
    pub fn run_number<B>(&self, request: &Request<B>) -> Option<u64> {
        request.extensions().get().map(|&RunId(run)| run)
    }

    /// Records that the handler of this request has had its effect. Does nothing if the request has
    /// not passed [`RunsLayer`].
    pub fn effect<B>(&self, request: &Request<B>) {
        if let Some(run) = self.run_number(request) {
            self.record(&Event::Effect(Effect { at: self.now(), run }));
        }
    }
}

impl<S, B> Service<Request<B>> for RecordRuns<S>
where
    S: Service<Request<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let record = place(request.record());
        let run = self.recorder.begin_run_of(record, request.lock().ok());
        request.extensions_mut().insert(run.id());
        let future = self.inner.call(request);
        Box::pin(async move {
            let result = future.await;
            run.end(&result);
            result
        })
    }
}
