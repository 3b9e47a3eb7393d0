//! Several topics in one consumer, each with its own service.

mod route;
mod target;

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::task::{Context, Poll};

use campanile_core::{BoxError, BoxableError, ConfigError, Record};
use futures_util::future::BoxFuture;
use tower_service::Service;

pub use self::route::NoRoute;
use self::route::{Route, Served, Unrouted};
pub(crate) use self::target::{Single, Target};
use crate::transaction::Answered;

/// A service for each topic, with its own body, key and limits:
/// [`Consumer::serve_routes`](crate::Consumer::serve_routes).
///
/// ```
/// use campanile_core::{BoxError, DecodeLayer, Request, key};
/// use campanile_idempotency::{IdempotencyLayer, LockKeeper, MemoryStore};
/// use campanile_kafka::Routes;
/// use tower::ServiceBuilder;
///
/// #[derive(serde::Deserialize)]
/// struct Payment { id: String }
///
/// #[derive(serde::Deserialize)]
/// struct Refund { number: u64 }
///
/// # fn main() -> Result<(), BoxError> {
/// // one keeper for all: it batches and renews for them together
/// let keeper = LockKeeper::new(MemoryStore::new())?;
/// let payments = ServiceBuilder::new()
///     .layer(DecodeLayer::json())
///     .layer(IdempotencyLayer::new(&keeper, "payments", key::field(|p: &Payment| &p.id))?)
///     .service_fn(async |_: Request<Payment>| Ok::<_, BoxError>(()));
/// let refunds = ServiceBuilder::new()
///     .layer(DecodeLayer::json())
///     .layer(IdempotencyLayer::new(&keeper, "refunds", key::body(|r: &Refund| r.number))?)
///     // at most four at a time, while payments go on
///     .concurrency_limit(4)
///     .service_fn(async |_: Request<Refund>| Ok::<_, BoxError>(()));
///
/// let routes = Routes::new().route("payments", payments).route("refunds", refunds);
/// # let _ = routes;
/// # Ok(())
/// # }
/// ```
///
/// # Readiness
/// A service is polled ready when a record for it is in hand, and then called with that record: none
/// holds a permit that it does not use. One that is not ready holds up the partitions of its topics
/// and no others. One whose readiness fails ends serving, as a single service would.
///
/// # Cost
/// One look-up and one allocation for each record, for the services' types are erased.
pub struct Routes {
    topics: HashMap<Box<str>, usize>,
    services: Vec<Box<dyn Route>>,
    /// The first mistake.
    refused: Option<ConfigError>,
}

/// Where the service is that has no topic of its own.
const FALLBACK: usize = 0;

impl Routes {
    /// No routes yet.
    pub fn new() -> Self {
        Self { topics: HashMap::new(), services: vec![Box::new(Unrouted)], refused: None }
    }

    /// The records of this topic go to this service. The topic is subscribed to.
    ///
    /// A copy in one of the consumer's [retry topics](crate::RetryTopics) goes where the record of
    /// which it is a copy would go.
    ///
    /// A topic with two routes, or a regular expression instead of a name, is refused when serving
    /// begins.
    pub fn route<S>(mut self, topic: impl Into<String>, service: S) -> Self
    where
        S: Service<Record> + Send + 'static,
        S::Error: BoxableError,
        S::Future: Send + 'static,
    {
        let topic = topic.into();
        if topic.starts_with('^') {
            self.refuse(format!(
                "`{topic}` is no topic's name: give a regular expression to `subscribe`, and what \
                 serves it to `fallback`"
            ));
        }
        let number = self.services.len();
        if self.topics.insert(topic.clone().into(), number).is_some() {
            self.refuse(format!("`{topic}` has two routes"));
        }
        self.services.push(Box::new(Served(service)));
        self
    }

    /// The records of all other topics go to this service: of those that match a regular expression
    /// of [`subscribe`](crate::Consumer::subscribe), say. The last one that is given counts.
    ///
    /// Default: none. Such a record is given up with the error [`NoRoute`].
    pub fn fallback<S>(mut self, service: S) -> Self
    where
        S: Service<Record> + Send + 'static,
        S::Error: BoxableError,
        S::Future: Send + 'static,
    {
        self.services[FALLBACK] = Box::new(Served(service));
        self
    }

    /// The topics with a route.
    pub(crate) fn topics(&self) -> impl Iterator<Item = &str> {
        self.topics.keys().map(|topic| &**topic)
    }

    /// An error if they contradict each other.
    pub(crate) fn checked(mut self) -> Result<Self, ConfigError> {
        match self.refused.take() {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }

    fn refuse(&mut self, text: String) {
        self.refused.get_or_insert(ConfigError::new(text));
    }
}

impl Target for Routes {
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Answered, BoxError>>;

    fn route(&self, record: &Record) -> usize {
        self.topics.get(&*record.origin().topic).copied().unwrap_or(FALLBACK)
    }

    fn poll_ready(&mut self, route: usize, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.services[route].poll_ready(cx).map_err(|source| {
            let topic = self.topics.iter().find(|(_, number)| **number == route);
            Unready { topic: topic.map(|(topic, _)| topic.clone()), source }.into()
        })
    }

    fn call(&mut self, route: usize, record: Record) -> Self::Future {
        self.services[route].call(record)
    }
}

impl Default for Routes {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Routes").field(&self.topics.keys()).finish()
    }
}

/// Which of the services will never be ready again.
#[derive(Debug)]
struct Unready {
    /// `None` for the fallback.
    topic: Option<Box<str>>,
    source: BoxError,
}

impl fmt::Display for Unready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.topic {
            Some(topic) => write!(f, "the service of the topic `{topic}`"),
            None => f.write_str("the service of topics without a route"),
        }
    }
}

impl Error for Unready {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
