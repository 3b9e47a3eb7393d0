//! Placeholder until the pieces exist.
fn main() {}
