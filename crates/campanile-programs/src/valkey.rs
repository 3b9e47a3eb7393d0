//! Location of Valkey's server.

use crate::cache;
use std::env;
use std::path::PathBuf;

/// The version of Valkey used by the tests.
pub const VERSION: &str = "9.1.2";

/// The variable that names another `valkey-server`.
pub const VARIABLE: &str = "CAMPANILE_VALKEY_SERVER";

/// Locates the program: the file named by `CAMPANILE_VALKEY_SERVER`, or else a file among the
/// downloads.
pub fn server() -> PathBuf {
    match env::var_os(VARIABLE) {
        Some(server) => server.into(),
        None => cache::folder().join(format!("valkey-{VERSION}/valkey-server")),
    }
}
