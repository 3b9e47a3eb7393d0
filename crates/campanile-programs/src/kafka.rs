//! Location of Apache Kafka's jars.

use crate::cache;
use std::env;
use std::path::PathBuf;

/// The version of Apache Kafka used by the tests.
pub const VERSION: &str = "4.3.1";

/// The variable that names another folder of jars, such as the `libs` of a Kafka distribution.
pub const VARIABLE: &str = "CAMPANILE_KAFKA_LIBS";

/// Locates the folder of jars: the folder named by `CAMPANILE_KAFKA_LIBS`, or else a folder among
/// the downloads.
pub fn folder() -> PathBuf {
    match env::var_os(VARIABLE) {
        Some(libs) => libs.into(),
        None => cache::folder().join(format!("kafka-{VERSION}/libs")),
    }
}
