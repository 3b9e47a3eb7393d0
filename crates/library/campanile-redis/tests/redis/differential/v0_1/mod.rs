//! Release 0.1: the scripts that its processes send. Later changes leave them as they are.

use campanile_redis::Verb;

/// If a script has other arguments by now, Lua in front of its text converts them to those of 0.1.
pub(crate) const SCRIPTS: [(Verb, &str); 9] = [
    (Verb::Acquire, include_str!("acquire.lua")),
    (Verb::Renew, include_str!("renew.lua")),
    (Verb::Complete, include_str!("complete.lua")),
    (Verb::Fail, include_str!("fail.lua")),
    (Verb::Release, include_str!("release.lua")),
    (Verb::Cancel, include_str!("cancel.lua")),
    (Verb::GiveUp, include_str!("give_up.lua")),
    (Verb::Redrive, include_str!("redrive.lua")),
    (Verb::RecordStep, include_str!("record_step.lua")),
];
