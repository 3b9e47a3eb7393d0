//! What processes of before the details send.

use campanile_redis::Verb;

/// The scripts of before details existed, without their comments. The others have not changed. Where the
/// arguments have changed, they are first converted to those of the script.
pub(crate) const SCRIPTS_BEFORE: [(Verb, &str); 4] = [
    (Verb::Acquire, concat!(include_str!("acquire_arguments.lua"), include_str!("acquire.lua"))),
    (Verb::Complete, concat!(include_str!("complete_arguments.lua"), include_str!("complete.lua"))),
    (Verb::Fail, include_str!("fail.lua")),
    (Verb::GiveUp, include_str!("give_up.lua")),
];
