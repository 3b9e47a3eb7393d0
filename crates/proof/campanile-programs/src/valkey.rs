//! Location of Valkey's server.

use std::path::PathBuf;

use crate::cache;

/// The version of Valkey used by the tests.
pub const VERSION: &str = "9.1.2";

/// The variable that names another `valkey-server`.
pub const VARIABLE: &str = "CAMPANILE_VALKEY_SERVER";

/// Locates the program: the file named by `CAMPANILE_VALKEY_SERVER`, or else a file among the
/// downloads.
pub fn server() -> PathBuf {
    cache::locate(VARIABLE, format!("valkey-{VERSION}/valkey-server"))
}
