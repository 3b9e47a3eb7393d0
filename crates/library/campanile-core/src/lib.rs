//! Records, keys, locks and the entry's state machine of Campanile, without a runtime, I/O, or a
//! clock that takes part in decisions.
//!
//! # Layout
//!
//! * [`Record`] is a record from Kafka. [`Request`] carries it, its body and its [`LockHandle`] through a
//!   tower stack; [`DecodeLayer`] turns a record into a request.
//! * [`handler()`] makes a service of an async function and its state.
//! * [`key`] contains the extractors that find a request's [`IdempotencyKey`].
//! * [`step`] is the state machine of the protocol, a pure function over an [`Entry`] and an
//!   [`Operation`]. Every store is tested against it.
//! * [`Outcome`] is the response of the idempotency layer; [`classify`] decides what an error
//!   means.
//! * [`telemetry`] defines the metrics of all crates.
//! * [`Output`] is a message produced by a handler.
//! * [`trace`] connects records, entries and messages with distributed traces.
//! * [`error`] contains the error types of all crates, and functions to find an error in a source
//!   chain.

#[cfg(feature = "certificates")]
#[doc(hidden)]
pub mod certificate;
pub mod classify;
pub mod clock;
pub mod error;
pub mod key;
pub mod limits;
#[doc(hidden)]
pub mod millis;
pub mod telemetry;
pub mod trace;

mod carry;
pub mod decode;
mod disposition;
mod entry;
mod fingerprint;
mod handler;
#[cfg(feature = "serde")]
mod human_duration;
mod locate;
mod lock;
mod namespace;
mod operation;
mod outcome;
mod output;
mod record;
mod reply;
mod request;
mod step;
mod store_key;
mod token;
mod wakers;

pub use self::carry::{CarryLock, WithLock};
pub use self::classify::Classify;
pub use self::clock::Clock;
pub use self::decode::{AsyncDecode, AsyncDecodeLayer, Decode, DecodeError, DecodeLayer};
pub use self::disposition::Disposition;
pub use self::entry::{Details, DetailsBuilder, Entry, State, Steps, Unreadable};
pub use self::error::{BoxError, BoxableError, ConfigError, LockLost, LostCause};
pub use self::fingerprint::{Fingerprint, FingerprintHasher};
pub use self::handler::{Handler, handler};
#[cfg(feature = "serde")]
#[doc(hidden)]
pub use self::human_duration::HumanDuration;
pub use self::key::{IdempotencyKey, IntoKey, KeyExtractor};
pub use self::locate::Locate;
#[doc(hidden)]
pub use self::lock::{Completion, LockControl, RecordSteps, Recording};
pub use self::lock::{LockHandle, LostFuture, StepError};
pub use self::namespace::Namespace;
pub use self::operation::{Command, Operation, Retention};
pub use self::outcome::{Duplicate, GivenUp, Outcome, WithoutLock};
pub use self::output::Output;
#[doc(hidden)]
pub use self::record::{Attempt, AwaitsTurn, Interrupt, LockReleased, Turn};
pub use self::record::{Coordinates, Headers, Record, RecordBuilder, Timestamp};
pub use self::reply::{Answer, Reply};
pub use self::request::{IntoParts, Parts, Request};
pub use self::step::{ExpireOutcome, expire, reply, step};
pub use self::store_key::StoreKey;
pub use self::token::{FencingToken, Grant, Owner};
pub use self::trace::TraceContext;
