//! The Lua scripts of Campanile's Redis store, as text.
//!
//! Each script applies one operation of the protocol to one or more entries, or changes when they
//! expire, atomically and by the server's clock. Redis 7.0 or later is required. The header of each file documents its `KEYS`, its
//! `ARGV` and its return value; the README of the package documents what the scripts have in common.
//!
//! Most users want `campanile-redis`, which encodes the arguments and decodes the replies. The
//! scripts are a package of their own so that clients in other languages, operators and reviewers
//! find them in one place.
//!
//! ```
//! assert!(campanile_lua::COMPLETE.starts_with("#!lua flags=allow-oom\n-- complete: "));
//! ```

/// Acquires the lock of each key and counts an attempt.
pub const ACQUIRE: &str = include_str!("../acquire.lua");

/// Extends the lock of each key.
pub const RENEW: &str = include_str!("../renew.lua");

/// Records the success of each key's grant, with the reply to replay.
pub const COMPLETE: &str = include_str!("../complete.lua");

/// Records the failed attempt of each key's grant.
pub const FAIL: &str = include_str!("../fail.lua");

/// Gives up the lock of each key and hands the attempt back.
pub const RELEASE: &str = include_str!("../release.lua");

/// Undoes an acquire of each key after its result was lost.
pub const CANCEL: &str = include_str!("../cancel.lua");

/// Makes each key permanently FAILED.
pub const GIVE_UP: &str = include_str!("../give_up.lua");

/// Reopens each FAILED key for an operator.
pub const REDRIVE: &str = include_str!("../redrive.lua");

/// Records the result of a step of the handler.
pub const RECORD_STEP: &str = include_str!("../record_step.lua");

/// Sets when each entry expires, for an operator.
pub const EXPIRE: &str = include_str!("../expire.lua");
