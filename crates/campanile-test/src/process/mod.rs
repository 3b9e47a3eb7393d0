//! Child processes that never outlive the test.

mod guard;
mod spawner;

pub use guard::Process;
