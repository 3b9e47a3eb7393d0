//! Location of DynamoDB Local's jars. The project's `xtask`, which downloads the jars, also compiles
//! this file.

use crate::cache;
use std::env;
use std::path::PathBuf;

/// The version of DynamoDB Local used by the tests.
pub(crate) const VERSION: &str = "2.6.1";

/// The variable that names another folder of jars and native libraries.
pub(crate) const VARIABLE: &str = "CAMPANILE_DYNAMODB_LIBS";

/// Locates the folder of jars: the folder named by `CAMPANILE_DYNAMODB_LIBS`, or else a folder among
/// the downloads.
pub(crate) fn folder() -> PathBuf {
    match env::var_os(VARIABLE) {
        Some(libs) => libs.into(),
        None => cache::folder().join(format!("dynamodb-{VERSION}/libs")),
    }
}
