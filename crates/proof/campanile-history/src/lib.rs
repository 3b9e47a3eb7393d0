//! Histories of idempotent Kafka consumers, and the judge that verifies them.
//!
//! A *history* is what producers, consumers, the broker and the store did, and what was broken
//! meanwhile, as files of JSON lines. [`judge`] decides whether it is sound: whether a record was
//! lost, a key ran twice without a cause, runs overlapped, an order was broken, or too much was
//! committed. `docs/history-format.md` describes each event and each rule. The example `verify` prints the
//! verdict about a folder, and the feature `history` of `campanile-test` records histories in tests.
//!
//! ```
//! use campanile_history::{History, Rule, judge};
//!
//! let history = r#"{"event":"history","version":1,"process":"test","clock":"boot","unit":"us","settings":{"order":"partition","lock_ttl":30000000}}
//! {"event":"sent","at":10,"record":"payments/0@0","key":"p-1"}
//! {"event":"sent","at":11,"record":"payments/0@1","key":"p-2"}
//! {"event":"begin","at":20,"run":1,"record":"payments/0@0","key":"p-1","token":7,"attempt":1}
//! {"event":"end","at":21,"run":1,"how":"ok"}
//! {"event":"answer","at":22,"record":"payments/0@0","outcome":"processed"}
//! "#;
//! let verdict = judge(&History::parse([("test.jsonl", history)])?);
//! assert_eq!(verdict.violations[0].rule, Rule::Lost);
//! assert_eq!(verdict.violations[0].subject, "payments/0@1");
//! println!("{verdict}");
//! # Ok::<(), campanile_history::ReadError>(())
//! ```
//!
//! # Layout
//!
//! * [`Event`] is a line of a history, and [`Header`] the first one of each process.
//! * [`Recorder`] writes the events of a process.
//! * [`History`] reads what all processes wrote.
//! * [`judge`] returns a [`Verdict`]: each [`Violation`] of a [`Rule`], and each [`Rerun`] with its
//!   [`Cause`].

mod coordinates;
mod error;
mod event;
mod header;
mod history;
mod judge;
mod printable;
mod recorder;
mod rules;
mod story;
mod verdict;

pub use self::coordinates::{Coordinates, InvalidPosition, Partition};
pub use self::error::ReadError;
pub use self::event::{
    Answer, Begin, Effect, End, Entry, Event, Fault, FaultKind, How, KeyEvent, Outcome, Peer,
    Position, Published, Sent, Skipped, State, Visible,
};
pub use self::header::{Header, HeaderTag, Order, Settings, Transactions, Unit, VERSION};
pub use self::history::History;
pub use self::judge::judge;
pub use self::recorder::Recorder;
pub use self::rules::{Cause, Rule};
pub use self::verdict::{Excerpt, Rerun, Verdict, Violation};
