//! Where the servers of Campanile's tests are: `cargo xtask install` puts them there, and `campanile-test`
//! starts them.

mod cache;
pub mod dynamodb;
pub mod faketime;
pub mod kafka;
pub mod postgres;
pub mod valkey;
