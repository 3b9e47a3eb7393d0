//! The lengths of tests.

/// Reads a number from the environment, for longer runs.
pub(crate) fn env_or(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}"))
}
