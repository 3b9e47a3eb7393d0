//! Where Apache Kafka's jars lie. The project's `xtask` compiles this file too: it fetches them.

use std::env;
use std::path::PathBuf;

/// The version of Apache Kafka that tests run against.
pub(crate) const VERSION: &str = "4.3.1";

/// The variable that names another folder of jars, such as the `libs` of a Kafka distribution.
pub(crate) const VARIABLE: &str = "CAMPANILE_KAFKA_LIBS";

/// The folder of jars: the one named by `CAMPANILE_KAFKA_LIBS`, else one in the cache folder, which
/// is `CAMPANILE_CACHE` or `~/.cache/campanile`: outside of every checkout, so that a clean one
/// fetches nothing.
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
