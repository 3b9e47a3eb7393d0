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

use crate::world::LONG;

/// Records the published messages, in the order of their acknowledgments.
#[derive(Clone, Default)]
pub(crate) struct Brokers(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    published: Vec<Output>,
    /// Keys and topics that are refused.
    refusing: HashSet<String>,
    /// Keys and topics that get no answer for now.
    holding: HashSet<String>,
    refused: usize,
    at_work: HashSet<(String, String)>,
    most_at_work: usize,
}

impl Brokers {
    /// Refuses messages of this key or topic from now on.
    pub(crate) fn refuse(&self, name: &str) {
        self.state().refusing.insert(name.to_owned());
    }

    pub(crate) fn accept(&self, name: &str) {
        self.state().refusing.remove(name);
    }

    /// Answers no message of this key or topic from now on.
    pub(crate) fn hold(&self, name: &str) {
        self.state().holding.insert(name.to_owned());
    }

    /// Answers messages of this key or topic again.
    pub(crate) fn go_on(&self, name: &str) {
        self.state().holding.remove(name);
        self.0.changed.notify_waiters();
    }

    /// Whether a message of this key is unanswered.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.state().at_work.iter().any(|(_, at_work)| at_work == key)
    }

    /// The number of refusals.
    pub(crate) fn refused(&self) -> usize {
        self.state().refused
    }

    /// The number of keys with an unanswered message.
    pub(crate) fn at_work(&self) -> usize {
        self.state().at_work.len()
    }

    /// The maximum number of keys that had an unanswered message at the same time.
    pub(crate) fn most_at_work(&self) -> usize {
        self.state().most_at_work
    }

    pub(crate) fn published(&self) -> Vec<Output> {
        self.state().published.clone()
    }

    /// The payloads of this key, in their order.
    pub(crate) fn of(&self, key: &str) -> Vec<String> {
        let published = self.published().into_iter();
        published.filter(|output| text(&output.key) == key).map(|it| text(&it.payload)).collect()
    }

    /// Waits until the condition holds.
    pub(crate) async fn wait_until(&self, is_so: impl Fn(&Self) -> bool) {
        let come = async {
            loop {
                let changed = self.0.changed.notified();
                if is_so(self) {
                    return;
                }
                changed.await;
            }
        };
        if timeout(LONG, come).await.is_err() {
            panic!("not within {LONG:?}; published: {:?}", self.published());
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
            let at_work = AtWork::begin(&brokers, (topic.clone(), key.clone()));
            brokers.0.changed.notify_waiters();
            yield_now().await;
            let names = [topic.clone(), key.clone()];
            let is_held = |name| brokers.state().holding.contains(name);
            brokers.wait_until(|_| !names.iter().any(is_held)).await;
            let mut state = brokers.state();
            let is_refused = [topic, key].iter().any(|name| state.refusing.contains(name));
            match is_refused {
                true => state.refused += 1,
                false => state.published.push(output),
            }
            drop(state);
            drop(at_work);
            brokers.0.changed.notify_waiters();
            if is_refused { Err("refused by the test".into()) } else { Ok(()) }
        })
    }
}

/// An unanswered message.
struct AtWork<'a>(&'a Brokers, (String, String));

impl<'a> AtWork<'a> {
    fn begin(brokers: &'a Brokers, of: (String, String)) -> Self {
        let mut state = brokers.state();
        let is_first = of.1.is_empty() || state.at_work.insert(of.clone());
        state.most_at_work = state.most_at_work.max(state.at_work.len());
        drop(state);
        assert!(is_first, "two messages of {of:?} in flight");
        Self(brokers, of)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.state().at_work.remove(&self.1);
    }
}
