//! The kit finds the bugs of handlers, and passes their corrected forms.

#![expect(clippy::unwrap_used, reason = "test helpers")]

mod bugs;
mod corrected;
mod given_up;
mod kit;
mod shop;
