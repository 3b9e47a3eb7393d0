//! The Lua scripts of Campanile's Redis store, as text.
//!
//! Each script applies one operation of the protocol to one or more entries, atomically and by the
//! server's own clock. They need Redis 7.0 or later. The head of each file tells its `KEYS`, its
//! `ARGV` and what it returns; the package's README tells what they have in common.
//!
//! Most users want `campanile-redis`, which encodes the arguments and reads the answers. The texts
//! stand alone so that clients in other languages, operators and reviewers find them in one place.
//!
//! ```
//! assert!(campanile_lua::COMPLETE.starts_with("#!lua flags=allow-oom\n-- complete: "));
//! ```

/// Take the lock of each key, and count an attempt.
pub const ACQUIRE: &str = include_str!("../acquire.lua");

/// Keep the lock of each key.
pub const RENEW: &str = include_str!("../renew.lua");

/// Record the success of each key's grant, with the reply to replay.
pub const COMPLETE: &str = include_str!("../complete.lua");

/// Record the failed attempt of each key's grant.
pub const FAIL: &str = include_str!("../fail.lua");

/// Give up the lock of each key, and hand the attempt back.
pub const RELEASE: &str = include_str!("../release.lua");

/// Undo an acquire of each key whose answer is unknown.
pub const CANCEL: &str = include_str!("../cancel.lua");

/// Make each key FAILED for good.
pub const REJECT: &str = include_str!("../reject.lua");

/// Open each FAILED key again, by an operator.
pub const REDRIVE: &str = include_str!("../redrive.lua");
