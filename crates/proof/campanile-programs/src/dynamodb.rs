//! Location of DynamoDB Local's jars.

use std::path::PathBuf;

use crate::cache;

/// The version of DynamoDB Local used by the tests.
pub const VERSION: &str = "2.6.1";

/// The variable that names another folder of jars and native libraries.
pub const VARIABLE: &str = "CAMPANILE_DYNAMODB_LIBS";

/// Locates the folder of jars: the folder named by `CAMPANILE_DYNAMODB_LIBS`, or else a folder among
/// the downloads.
pub fn folder() -> PathBuf {
    cache::locate(VARIABLE, format!("dynamodb-{VERSION}/libs"))
}
