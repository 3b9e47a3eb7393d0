//! Location of what is downloaded for the tests.

use std::env;
use std::path::PathBuf;

/// Locates the folder of downloads: `CAMPANILE_CACHE`, or `~/.cache/campanile`. It lies outside
/// every checkout, so that a clean checkout downloads nothing.
fn folder() -> PathBuf {
    match env::var_os("CAMPANILE_CACHE") {
        Some(cache) => cache.into(),
        None => env::home_dir().unwrap_or_else(env::temp_dir).join(".cache/campanile"),
    }
}

/// Locates what this variable names, or else a file or folder among the downloads.
pub(crate) fn locate(variable: &str, path: String) -> PathBuf {
    env::var_os(variable).map_or_else(|| folder().join(path), PathBuf::from)
}
