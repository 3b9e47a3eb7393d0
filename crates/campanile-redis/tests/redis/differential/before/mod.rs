//! What processes of before the details send.

use campanile_redis::Verb;

/// The scripts of before details existed, without their comments. The others have not changed.
pub(crate) const SCRIPTS_BEFORE: [(Verb, &str); 3] = [
    (Verb::Acquire, include_str!("acquire.lua")),
    (Verb::Fail, include_str!("fail.lua")),
    (Verb::GiveUp, include_str!("give_up.lua")),
];
