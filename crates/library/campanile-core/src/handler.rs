//! [`handler()`], a service from an async function and its state.

use std::any::type_name;
use std::fmt;
use std::future::Future;
use std::task::{Context, Poll};

use tower_service::Service;

/// Creates a service from an async function that takes the program's state, such as a pool of
/// connections, and the request.
///
/// Each call gets a clone of the state, so the state must be cheap to clone: a pool, a client, an
/// [`Arc`](std::sync::Arc), or a struct of these. The service is always ready. For a function
/// without state, use tower's `service_fn`: `.service_fn(charge)`.
///
/// ```
/// use campanile_core::{BoxError, DecodeLayer, Record, Request, handler};
/// use std::sync::{Arc, Mutex};
/// use tower::{ServiceBuilder, ServiceExt};
///
/// #[derive(serde::Deserialize)]
/// struct Payment { cents: u64 }
///
/// #[derive(Clone, Default)]
/// struct Ledger(Arc<Mutex<u64>>);
///
/// async fn charge(ledger: Ledger, request: Request<Payment>) -> Result<(), BoxError> {
///     *ledger.0.lock().unwrap() += request.body().cents;
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let ledger = Ledger::default();
/// let service = ServiceBuilder::new()
///     .layer(DecodeLayer::json())
///     .service(handler(ledger.clone(), charge));
///
/// service.oneshot(Record::builder("payments", 0, 0).payload(r#"{"cents":100}"#).build()).await?;
/// assert_eq!(*ledger.0.lock().unwrap(), 100);
/// # Ok(())
/// # }
/// ```
pub fn handler<S, F, R, Fut, T, E>(state: S, function: F) -> Handler<S, F>
where
    S: Clone,
    F: Fn(S, R) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    Handler { state, function }
}

/// The service returned by [`handler()`].
#[derive(Clone, Copy)]
#[must_use]
pub struct Handler<S, F> {
    state: S,
    function: F,
}

impl<S, F, R, Fut, T, E> Service<R> for Handler<S, F>
where
    S: Clone,
    F: Fn(S, R) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    type Response = T;
    type Error = E;
    type Future = Fut;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), E>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Fut {
        (self.function)(self.state.clone(), request)
    }
}

/// Prints the names of the types, because the state often contains credentials.
impl<S, F> fmt::Debug for Handler<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler")
            .field("state", &format_args!("{}", type_name::<S>()))
            .field("function", &format_args!("{}", type_name::<F>()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use tokio_test::block_on;
    use tower::ServiceExt;

    use super::*;

    async fn append(state: Arc<str>, request: &'static str) -> Result<String, Infallible> {
        Ok(format!("{state}{request}"))
    }

    #[test]
    fn handler_gets_a_clone_of_the_state_for_each_call() {
        let service = handler(Arc::from("a"), append);
        for (request, response) in [("b", "ab"), ("c", "ac")] {
            assert_eq!(block_on(service.clone().oneshot(request)).as_deref(), Ok(response));
        }
    }

    #[test]
    fn handler_accepts_async_closures() {
        let service = handler(Arc::from("a"), async |state, request| append(state, request).await);
        assert_eq!(block_on(service.oneshot("b")).as_deref(), Ok("ab"));
    }

    #[test]
    fn debug_hides_the_state() {
        let shown = format!("{:?}", handler(Arc::from("secret"), append));
        assert!(shown.contains("append") && !shown.contains("secret"), "{shown}");
    }
}
