//! Location of Valkey's server. The project's `xtask`, which downloads it, also compiles this file.

use crate::cache;
use std::env;
use std::path::PathBuf;

/// The version of Valkey used by the tests.
pub(crate) const VERSION: &str = "9.1.2";

/// The variable that names another `valkey-server`.
pub(crate) const VARIABLE: &str = "CAMPANILE_VALKEY_SERVER";

/// Locates the program: the file named by `CAMPANILE_VALKEY_SERVER`, or else a file among the
/// downloads.
pub(crate) fn server() -> PathBuf {
    match env::var_os(VARIABLE) {
        Some(server) => server.into(),
        None => cache::folder().join(format!("valkey-{VERSION}/valkey-server")),
    }
}
