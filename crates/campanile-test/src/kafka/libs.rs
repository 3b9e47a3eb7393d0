//! Location of Apache Kafka's jars. The project's `xtask`, which downloads the jars, also compiles
//! this file.

use crate::cache;
use std::env;
use std::path::PathBuf;

/// The version of Apache Kafka used by the tests.
pub(crate) const VERSION: &str = "4.3.1";

/// The variable that names another folder of jars, such as the `libs` of a Kafka distribution.
pub(crate) const VARIABLE: &str = "CAMPANILE_KAFKA_LIBS";

/// Locates the folder of jars: the folder named by `CAMPANILE_KAFKA_LIBS`, or else a folder among
/// the downloads.
pub(crate) fn folder() -> PathBuf {
    match env::var_os(VARIABLE) {
        Some(libs) => libs.into(),
        None => cache::folder().join(format!("kafka-{VERSION}/libs")),
    }
}
