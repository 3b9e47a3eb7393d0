//! What becomes of records that are given up, where they are kept.

#![allow(dead_code, unused_imports)] // until letters are published

mod headers;

pub use self::headers::HeaderStyle;
pub(crate) use self::headers::{Cause, Letter};
