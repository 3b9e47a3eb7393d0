//! The dashboard, the alert rules and their runbooks: they agree with each other and with the table of
//! instruments, and they show the faults of real servers.
// The futures of the fault run contain each other.
#![recursion_limit = "256"]
#![expect(clippy::unwrap_used, reason = "test helpers")]

mod expressions;
mod fault_run;
mod faults;
mod files;
mod prometheus;
mod runbooks;
mod scrape;
mod visible;
mod workload;
