//! Records histories of tests, and judges them.
//!
//! A [`HistoryRecorder`] writes what a process does to a file. Two layers record what passes through
//! a stack: [`answers`](HistoryRecorder::answers) around all other layers, and
//! [`runs`](HistoryRecorder::runs) directly inside the idempotency layer. The test itself records what
//! was sent, committed and broken. [`judge`] then decides whether a record was lost, why each key that
//! ran twice could do so, and whether the order and the commits were right. Everything of
//! [`campanile_history`] is exported here; `docs/history-format.md` describes the format and the
//! rules.
//!
//! ```
//! use campanile_core::{BoxError, Coordinates, DecodeLayer, Record, Request, key};
//! use campanile_idempotency::{IdempotencyConfig, IdempotencyLayer, MemoryStore};
//! use campanile_test::history::{History, HistoryRecorder, Order, Settings, judge};
//! use tower::{Service, ServiceBuilder, ServiceExt};
//!
//! async fn charge(request: Request<String>) -> Result<(), BoxError> {
//!     println!("charging {}", request.body());
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let folder = tempfile::tempdir()?;
//! let settings = Settings {
//!     order: Order::Partition,
//!     lock_ttl: 30_000_000,
//!     max_hold: None,
//!     transactions: None,
//!     tolerance: 0,
//! };
//! let history = HistoryRecorder::create(folder.path(), "test", Some(settings))?;
//! let mut stack = ServiceBuilder::new()
//!     // records each answer
//!     .layer(history.answers())
//!     .layer(DecodeLayer::json())
//!     .layer(IdempotencyLayer::new(MemoryStore::new(), "billing", key::field(|id: &String| id))?)
//!     // records the begin and the end of each run
//!     .layer(history.runs())
//!     .service_fn(charge);
//!
//! let record = Record::builder("payments", 0, 0).payload(r#""p-1""#).build();
//! history.sent(history.now(), record.coordinates(), Some("p-1"), None);
//! stack.ready().await?.call(record).await?;
//!
//! let verdict = judge(&History::read(folder.path())?);
//! assert!(verdict.is_sound(), "{verdict}");
//! # Ok(())
//! # }
//! ```

mod answers;
#[cfg(feature = "servers")]
mod commits;
mod recorder;
mod run;
mod runs;

pub use campanile_history::*;

pub use self::answers::{AnswersLayer, RecordAnswers};
pub use self::recorder::{HistoryRecorder, TOPIC_HEADER};
pub use self::run::RunRecorder;
pub use self::runs::{RecordRuns, RunsLayer};
