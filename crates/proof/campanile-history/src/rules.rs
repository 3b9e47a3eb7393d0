//! The rules of the judge, and the causes for which a key may run again.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Defines an enum from a table of names and descriptions.
macro_rules! table {
    ($(#[$doc:meta])* $name:ident { $($variant:ident $text:literal: $description:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum $name {
            $(#[doc = $description] $variant,)*
        }

        impl $name {
            /// All values, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the name, as in JSON.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// Returns what it says, as a sentence.
            pub const fn description(self) -> &'static str {
                match self {
                    $(Self::$variant => $description,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

table! {
    /// What a sound history does not show.
    Rule {
        Lost "lost": "A record that was sent or copied is never finished.",
        NoEffect "no_effect": "A record is answered as done, and no handler had ended with `ok`; or as given up, and none had begun.",
        Key "key": "A run has another key than its record, or a copy than the record that was copied.",
        Unexplained "unexplained": "A key runs again without a cause.",
        Overlap "overlap": "Two runs of a key overlap, and nothing permits it.",
        Order "order": "A run starts before an earlier record of its queue is finished.",
        CommitPastUnfinished "commit_past_unfinished": "An offset is committed before a record below it is finished.",
        CommitLowered "commit_lowered": "A commit lowers the committed offset.",
        Token "token": "The fencing token does not rise from one run of a key to the next.",
        AttemptWithoutRun "attempt_without_run": "More attempts are counted than runs and faults explain.",
        AttemptNotCounted "attempt_not_counted": "The attempt of a process that was killed is not counted, or fewer attempts are counted than before.",
        Effect "effect": "The effect of a key is visible twice, or that of a handler that did not succeed.",
        OutputMissing "output_missing": "A record is answered as done and committed, and no output of its key is visible.",
        OutputUncommitted "output_uncommitted": "An output is visible, and the offset of its record is not committed.",
        Entry "entry": "The entry of a key contradicts its runs.",
    }
}

table! {
    /// Why a key ran again.
    Cause {
        Reopened "reopened": "An operator reopened the key.",
        Unguarded "unguarded": "One of the two runs had no lock.",
        RolledBack "rolled_back": "The transaction of the handler was rolled back.",
        Failed "failed": "The handler had failed.",
        KilledAfterEffect "killed_after_effect": "The process was killed after the effect, before it was recorded.",
        KilledBeforeEffect "killed_before_effect": "The process was killed while its handler ran.",
        Dropped "dropped": "The handler was dropped: by a revoke, a shutdown or a timeout.",
        DroppedAfterSuccess "dropped_after_success": "The handler had succeeded, and the response was dropped while the store was unavailable.",
        Unlocked "unlocked": "An operator took the lock from its owner.",
        Suspended "suspended": "The process was suspended, so its lock may have expired.",
        StoreUnavailable "store_unavailable": "The store was unavailable, so the lock may have expired.",
        NetworkCut "network_cut": "The process was cut off from the store, so its lock may have expired.",
        ClockStepped "clock_stepped": "The store's clock was set forward, so the lock may have expired.",
        MaxHold "max_hold": "The handler held its lock for longer than allowed, and was dropped.",
        StoreLostWrites "store_lost_writes": "The store lost writes that it had acknowledged.",
        StoreEvicted "store_evicted": "The store removed the entry.",
    }
}
