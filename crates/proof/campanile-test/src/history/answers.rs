//! The layer that records answers.

use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use campanile_core::{Outcome, Record};
use campanile_history::{Answer, Coordinates, Event, Outcome as Recorded};
use tower_layer::Layer;
use tower_service::Service;

use super::HistoryRecorder;
use super::recorder::place;

/// Records each answer of a stack, and each response that is dropped before its answer. Created by
/// [`HistoryRecorder::answers`].
///
/// It belongs around all other layers, so that it records what the consumer gets.
#[derive(Clone, Debug)]
pub struct AnswersLayer {
    recorder: HistoryRecorder,
}

/// The service of [`AnswersLayer`].
#[derive(Clone, Debug)]
pub struct RecordAnswers<S> {
    inner: S,
    recorder: HistoryRecorder,
}

impl AnswersLayer {
    pub(super) fn new(recorder: HistoryRecorder) -> Self {
        Self { recorder }
    }
}

impl<S> Layer<S> for AnswersLayer {
    type Service = RecordAnswers<S>;

    fn layer(&self, inner: S) -> RecordAnswers<S> {
        RecordAnswers { inner, recorder: self.recorder.clone() }
    }
}

impl<S, T> Service<Record> for RecordAnswers<S>
where
    S: Service<Record, Response = Outcome<T>>,
    S::Error: Display,
    S::Future: Send + 'static,
{
    type Response = Outcome<T>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Outcome<T>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, record: Record) -> Self::Future {
        let (recorder, record_at) = (self.recorder.clone(), place(&record));
        let future = self.inner.call(record);
        Box::pin(async move {
            // Dropped after the inner future, whose handler may end when it is dropped.
            let response = Response { recorder, record: record_at, is_answered: false };
            let result = future.await;
            response.answer(&result);
            result
        })
    }
}

/// A response. If it is dropped before its answer is recorded, the caller has dropped it, or the stack
/// has panicked.
struct Response {
    recorder: HistoryRecorder,
    record: Coordinates,
    is_answered: bool,
}

impl Response {
    fn answer<T, E: Display>(mut self, result: &Result<Outcome<T>, E>) {
        self.is_answered = true;
        let error = result.as_ref().err().map(ToString::to_string);
        self.record_answer(recorded(result), error);
    }

    fn record_answer(&self, outcome: Recorded, error: Option<String>) {
        let (at, record) = (self.recorder.now(), self.record.clone());
        self.recorder.record(&Event::Answer(Answer { at, record, outcome, error }));
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        if !self.is_answered {
            let has_panicked = std::thread::panicking();
            let outcome = if has_panicked { Recorded::Error } else { Recorded::Dropped };
            self.record_answer(outcome, None);
        }
    }
}

fn recorded<T, E>(result: &Result<Outcome<T>, E>) -> Recorded {
    match result {
        Ok(Outcome::Processed(_)) => Recorded::Processed,
        Ok(Outcome::Duplicate(_)) => Recorded::Duplicate,
        Ok(Outcome::GivenUp(_)) => Recorded::GivenUp,
        Ok(Outcome::WithoutLock(..)) => Recorded::Unguarded,
        Ok(_) => unreachable!("all outcomes are listed"),
        Err(_) => Recorded::Error,
    }
}
