//! What campanile-kafka shares with the driver. Not a part of the public API.

pub use crate::backoff::server_backoff;
pub use crate::error::{chain, log_stop, origin, panic_text, write_text};
pub use crate::wall_clock::now;
