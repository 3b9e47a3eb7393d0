//! Brokers that accept, refuse or delay messages as the test requests.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use campanile_core::{BoxError, Output};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::timeout;
use tower::Service;

use crate::support::EVENT_TIMEOUT;

/// Records the published messages, in the order of their acknowledgments.
#[derive(Clone, Default)]
pub(crate) struct Brokers(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    published: Vec<Output>,
    /// Keys and topics that are refused.
    refused_names: HashSet<String>,
    /// Keys and topics that get no answer for now.
    held_names: HashSet<String>,
    refused: usize,
    in_flight: HashSet<(String, String)>,
    max_in_flight: usize,
}

impl Brokers {
    /// Refuses messages of this key or topic from now on.
    pub(crate) fn refuse(&self, name: &str) {
        self.state().refused_names.insert(name.to_owned());
    }

    pub(crate) fn accept(&self, name: &str) {
        self.state().refused_names.remove(name);
    }

    /// Answers no message of this key or topic from now on.
    pub(crate) fn hold(&self, name: &str) {
        self.state().held_names.insert(name.to_owned());
    }

    /// Answers messages of this key or topic again.
    pub(crate) fn resume(&self, name: &str) {
        self.state().held_names.remove(name);
        self.0.changed.notify_waiters();
    }

    /// Whether a message of this key is unanswered.
    pub(crate) fn has_in_flight(&self, key: &str) -> bool {
        self.state().in_flight.iter().any(|(_, in_flight)| in_flight == key)
    }

    /// The number of refusals.
    pub(crate) fn refused(&self) -> usize {
        self.state().refused
    }

    /// The number of keys with an unanswered message.
    pub(crate) fn in_flight(&self) -> usize {
        self.state().in_flight.len()
    }

    /// The maximum number of keys that had an unanswered message at the same time.
    pub(crate) fn max_in_flight(&self) -> usize {
        self.state().max_in_flight
    }

    pub(crate) fn published(&self) -> Vec<Output> {
        self.state().published.clone()
    }

    /// The payloads of this key, in their order.
    pub(crate) fn payloads_of(&self, key: &str) -> Vec<String> {
        let published = self.published().into_iter();
        published.filter(|output| text(&output.key) == key).map(|it| text(&it.payload)).collect()
    }

    /// Waits until the condition holds.
    pub(crate) async fn wait_until(&self, condition: impl Fn(&Self) -> bool) {
        let polling = async {
            loop {
                let changed = self.0.changed.notified();
                if condition(self) {
                    return;
                }
                changed.await;
            }
        };
        if timeout(EVENT_TIMEOUT, polling).await.is_err() {
            panic!("not within {EVENT_TIMEOUT:?}; published: {:?}", self.published());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }
}

/// Converts a part of a message into text; an absent part is an empty string.
pub(crate) fn text(bytes: &Option<bytes::Bytes>) -> String {
    bytes.as_ref().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
}

impl Service<Output> for Brokers {
    type Response = ();
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, output: Output) -> Self::Future {
        let brokers = self.clone();
        Box::pin(async move {
            let (topic, key) = (output.topic.to_string(), text(&output.key));
            let in_flight = InFlight::start(&brokers, (topic.clone(), key.clone()));
            brokers.0.changed.notify_waiters();
            yield_now().await;
            let names = [topic.clone(), key.clone()];
            let is_held = |name| brokers.state().held_names.contains(name);
            brokers.wait_until(|_| !names.iter().any(is_held)).await;
            let mut state = brokers.state();
            let is_refused = [topic, key].iter().any(|name| state.refused_names.contains(name));
            match is_refused {
                true => state.refused += 1,
                false => state.published.push(output),
            }
            drop(state);
            drop(in_flight);
            brokers.0.changed.notify_waiters();
            if is_refused { Err("refused by the test".into()) } else { Ok(()) }
        })
    }
}

/// An unanswered message.
struct InFlight<'a>(&'a Brokers, (String, String));

impl<'a> InFlight<'a> {
    fn start(brokers: &'a Brokers, of: (String, String)) -> Self {
        let mut state = brokers.state();
        let is_first = of.1.is_empty() || state.in_flight.insert(of.clone());
        state.max_in_flight = state.max_in_flight.max(state.in_flight.len());
        drop(state);
        assert!(is_first, "two messages of {of:?} in flight");
        Self(brokers, of)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.state().in_flight.remove(&self.1);
    }
}
