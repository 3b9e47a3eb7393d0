//! Errors and their sources.

use std::error::Error;
use std::fmt;

use campanile_core::error::{self, Permanent};

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
