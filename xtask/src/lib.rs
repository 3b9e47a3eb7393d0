//! The project's commands: `cargo xtask`. Its mutation tool, `tools/mutation`, uses what runs test binaries.

pub mod binaries;
mod ci;
pub mod command;
mod dependencies;
mod document;
mod everything;
mod evidence;
mod features;
mod fetch;
mod fuzz;
mod guarantees;
pub mod install;
pub mod libtest;
mod package;
pub mod parallel;
pub mod progress;
mod prove;
mod servers;
mod simulation;
mod soak;
pub mod supervise;

/// The result of a command. The error is a message for the user.
pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;
