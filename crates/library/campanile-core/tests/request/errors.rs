//! Errors and their sources.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use campanile_core::error::{self, Permanent};
use campanile_core::{BoxError, ConfigError, FencingToken, IdempotencyKey, LockLost, LostCause};

/// An error that is its own source.
#[derive(Debug)]
struct Endless;

impl fmt::Display for Endless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("endless")
    }
}

impl Error for Endless {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self)
    }
}

#[test]
fn source_search_ends_for_cyclic_error() {
    assert!(error::find::<Permanent>(&Endless).is_none());
    let wrapped = error::permanent(Endless);
    assert!(error::find::<Endless>(&wrapped).is_some());
    assert_eq!(error::sources(&wrapped).count(), 256);
}

#[test]
fn sources_are_outermost_first() {
    let wrapped = error::stop(error::skip("no"));
    let texts: Vec<_> = error::sources(&wrapped).map(ToString::to_string).collect();
    assert_eq!(texts.len(), 3);
    assert!(texts[0].starts_with("stop") && texts[2] == "no", "{texts:?}");
}

#[test]
fn errors_display_the_reason() {
    let key = IdempotencyKey::new("k").unwrap();
    let token = FencingToken::new(7).unwrap();
    let lost = |cause| BoxError::from(LockLost { key: key.clone(), token, cause });
    let texts: [(BoxError, &str); 11] = [
        (error::permanent("x").into(), "permanent error"),
        (error::skip("x").into(), "skipped by the handler"),
        (error::stop("x").into(), "stopped by the handler"),
        (error::not_run("x").into(), "the handler did not run"),
        (error::undone("x").into(), "the handler's effect was rolled back"),
        (error::retry_after("x", Duration::from_secs(2)).into(), "retry after 2s"),
        (ConfigError::new("`a` must be 1").into(), "`a` must be 1"),
        (lost(LostCause::Superseded), "the entry belongs to another grant or is gone"),
        (lost(LostCause::Expired), "lock lost (token 7): no renewal was confirmed"),
        (lost(LostCause::MaxHold), "held it longer than `max_hold`"),
        (lost(LostCause::Ended), "the attempt for which it was granted has ended"),
    ];
    for (error, expected) in texts {
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert_eq!(format!("{:?}", ConfigError::new("`a` must be 1")), "`a` must be 1");
}

#[test]
fn marked_error_keeps_its_source() {
    let marked: [BoxError; 7] = [
        error::permanent("x").into(),
        error::skip("x").into(),
        error::stop("x").into(),
        error::not_run("x").into(),
        error::undone("x").into(),
        error::retry_after("x", Duration::from_secs(1)).into(),
        error::unavailable("x").into(),
    ];
    for marked in marked {
        assert_eq!(marked.source().map(ToString::to_string).as_deref(), Some("x"), "{marked}");
        assert_eq!(error::sources(&*marked).count(), 2, "{marked}");
    }
}

/// A payload of a panic that panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        std::panic::panic_any(Bomb);
    }
}

#[test]
fn panic_text_is_that_of_a_string() {
    assert_eq!(error::panic_text(Box::new("text")).as_deref(), Some("text"));
    assert_eq!(error::panic_text(Box::new(String::from("text"))).as_deref(), Some("text"));
    assert_eq!(error::panic_text(Box::new(7)), None);
    assert_eq!(error::panic_text(Box::new(Bomb)), None);
}
