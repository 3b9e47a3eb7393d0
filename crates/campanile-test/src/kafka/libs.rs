//! Location of Apache Kafka's jars. The project's `xtask`, which downloads the jars, also compiles
//! this file.

use std::env;
use std::path::PathBuf;

/// The version of Apache Kafka used by the tests.
pub(crate) const VERSION: &str = "4.3.1";

/// The variable that names another folder of jars, such as the `libs` of a Kafka distribution.
pub(crate) const VARIABLE: &str = "CAMPANILE_KAFKA_LIBS";

/// Locates the folder of jars: the folder named by `CAMPANILE_KAFKA_LIBS`, or else a folder in the
/// cache, which is `CAMPANILE_CACHE` or `~/.cache/campanile`. The cache lies outside every
/// checkout, so that a clean checkout downloads nothing.
pub(crate) fn folder() -> PathBuf {
    if let Some(libs) = env::var_os(VARIABLE) {
        return libs.into();
    }
    let cache = match env::var_os("CAMPANILE_CACHE") {
        Some(cache) => cache.into(),
        None => env::home_dir().unwrap_or_else(env::temp_dir).join(".cache/campanile"),
    };
    cache.join(format!("kafka-{VERSION}/libs"))
}
