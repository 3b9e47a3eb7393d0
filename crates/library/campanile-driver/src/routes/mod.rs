//! Several topics in one consumer, each with its own service.

mod route;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use campanile_core::{BoxableError, ConfigError, Record};
use tower_service::Service;

use self::route::NoFallback;
use self::route::ServiceRoute;
pub(crate) use self::route::{ReadinessReporter, Route, RouteError, RouteFuture};
use crate::source::ItemResult;

/// A service for each topic, with its own body type, key and limits. Serve it with
/// `Consumer::serve_routes`.
///
/// ```
/// use campanile_core::{BoxError, DecodeLayer, Request, key};
/// use campanile_idempotency::{IdempotencyLayer, LockKeeper, MemoryStore};
/// use campanile_driver::Routes;
/// use tower::ServiceBuilder;
///
/// #[derive(serde::Deserialize)]
/// struct Payment { id: String }
///
/// #[derive(serde::Deserialize)]
/// struct Refund { number: u64 }
///
/// # fn main() -> Result<(), BoxError> {
/// // one keeper for all services: it batches and renews for them together
/// let keeper = LockKeeper::new(MemoryStore::new())?;
/// let payments = ServiceBuilder::new()
///     .layer(DecodeLayer::json())
///     .layer(IdempotencyLayer::new(&keeper, "payments", key::field(|p: &Payment| &p.id))?)
///     .service_fn(async |_: Request<Payment>| Ok::<_, BoxError>(()));
/// let refunds = ServiceBuilder::new()
///     .layer(DecodeLayer::json())
///     .layer(IdempotencyLayer::new(&keeper, "refunds", key::body(|r: &Refund| r.number))?)
///     // at most four refunds at a time; payments are not limited
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
/// Each record gets a clone of its service, which is polled ready and then called, so no clone
/// holds a permit that it does not use. A service that is not ready holds up the partitions of its
/// topics and no others. If the `poll_ready` of a service fails, serving ends, as with a single
/// service.
#[must_use]
pub struct Routes {
    topics: HashMap<Box<str>, usize>,
    services: Vec<Arc<dyn Route>>,
    /// The first configuration error.
    config_error: Option<ConfigError>,
}

/// The index of the service that has no topic of its own.
const FALLBACK: usize = 0;

impl Routes {
    /// Creates an empty set of routes.
    pub fn new() -> Self {
        Self { topics: HashMap::new(), services: vec![Arc::new(NoFallback)], config_error: None }
    }

    /// Routes the records of this topic to this service, and subscribes to the topic.
    ///
    /// A copy in one of the consumer's retry topics takes the route of its
    /// original record.
    ///
    /// A topic with two routes, or a regular expression instead of a name, is refused when serving
    /// starts.
    pub fn route<S>(mut self, topic: impl Into<String>, service: S) -> Self
    where
        S: Service<Record> + Clone + Send + 'static,
        S::Response: 'static,
        S::Error: BoxableError,
        S::Future: Send + 'static,
    {
        let topic = topic.into();
        if topic.starts_with('^') {
            self.set_error(format!(
                "`{topic}` is not a topic name: pass a regular expression to `subscribe`, and the \
                 service for its topics to `fallback`"
            ));
        }
        let index = self.services.len();
        if self.topics.insert(topic.as_str().into(), index).is_some() {
            self.set_error(format!("`{topic}` has two routes"));
        }
        let serves = format!("topic `{topic}`");
        self.services.push(Arc::new(ServiceRoute::new(service, serves)));
        self
    }

    /// Routes the records of all other topics to this service, such as those of topics that match a
    /// regular expression of `subscribe`. A later call replaces the
    /// service of an earlier one.
    ///
    /// Default: none. A record without a route is given up with the error [`NoRoute`](crate::NoRoute).
    pub fn fallback<S>(mut self, service: S) -> Self
    where
        S: Service<Record> + Clone + Send + 'static,
        S::Response: 'static,
        S::Error: BoxableError,
        S::Future: Send + 'static,
    {
        let serves = "topics without a route";
        self.services[FALLBACK] = Arc::new(ServiceRoute::new(service, serves));
        self
    }

    /// Lists the topics that have a route.
    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.topics.keys().map(|topic| &**topic)
    }

    /// Builds the router of these routes.
    ///
    /// # Errors
    /// Fails if the routes contradict each other.
    pub fn checked(self) -> Result<Router, ConfigError> {
        match self.config_error {
            Some(error) => Err(error),
            None => Ok(Router { topics: self.topics, routes: self.services }),
        }
    }

    fn set_error(&mut self, text: String) {
        self.config_error.get_or_insert(ConfigError::new(text));
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

/// The services of a driver: one for all records, or those of [`Routes`].
pub struct Router {
    topics: HashMap<Box<str>, usize>,
    routes: Vec<Arc<dyn Route>>,
}

impl Router {
    /// Routes all records to this service, and ignores its responses.
    pub fn single<S>(service: S) -> Self
    where
        S: Service<Record> + Clone + Send + 'static,
        S::Response: 'static,
        S::Error: BoxableError,
        S::Future: Send + 'static,
    {
        Self::with_items(service, |_, _| Ok(None))
    }

    /// Routes all records to this service, whose responses are converted to what the records hand over to
    /// the [`Sink`](crate::source::Sink) of their partition.
    pub fn with_items<S>(service: S, into_item: fn(S::Response, &Record) -> ItemResult) -> Self
    where
        S: Service<Record> + Clone + Send + 'static,
        S::Response: 'static,
        S::Error: BoxableError,
        S::Future: Send + 'static,
    {
        let route = ServiceRoute::with_items(service, into_item);
        Self { topics: HashMap::new(), routes: vec![Arc::new(route)] }
    }

    pub(crate) fn route_of(&self, record: &Record) -> usize {
        if self.topics.is_empty() {
            return FALLBACK;
        }
        self.topics.get(&*record.origin().topic).copied().unwrap_or(FALLBACK)
    }

    pub(crate) fn route(&self, index: usize) -> Arc<dyn Route> {
        self.routes[index].clone()
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Router").field(&self.topics.keys()).finish()
    }
}
