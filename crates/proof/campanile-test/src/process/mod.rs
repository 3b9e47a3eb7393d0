//! Child processes that never outlive the test.

mod children;
mod guard;
mod spawner;

pub use guard::Process;
