//! Observing: what the idempotency layer would do with each request of a consumer that runs
//! unchanged.
//!
//! * [`ObserveLayer`] creates an [`ObserveService`] with an [`ObserveFuture`]; [`Observer`] is for
//!   loops without a tower stack.
//! * [`run`] is the handler's side of an observed request, and [`observation`] the store's. They meet
//!   in [`Shared`](observation::Shared): whichever comes last settles the lock.
//! * [`report`] has the metrics and the events.

mod future;
mod layer;
mod observation;
mod observer;
mod report;
mod run;
mod running;
mod service;

pub use self::future::ObserveFuture;
pub use self::layer::ObserveLayer;
pub use self::observer::Observer;
pub use self::service::ObserveService;
