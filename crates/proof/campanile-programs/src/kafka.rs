//! Location of Apache Kafka's jars.

use std::path::PathBuf;

use crate::cache;

/// The version of Apache Kafka used by the tests.
pub const VERSION: &str = "4.3.1";

/// The variable that names another folder of jars, such as the `libs` of a Kafka distribution.
pub const VARIABLE: &str = "CAMPANILE_KAFKA_LIBS";

/// Locates the folder of jars: the folder named by `CAMPANILE_KAFKA_LIBS`, or else a folder among
/// the downloads.
pub fn folder() -> PathBuf {
    cache::locate(VARIABLE, format!("kafka-{VERSION}/libs"))
}
