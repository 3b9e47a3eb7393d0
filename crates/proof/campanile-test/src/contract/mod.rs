//! The contract of every [`Store`] as tests, for your own stores.
//!
//! ```
//! use campanile_idempotency::MemoryStore;
//! use campanile_test::{TestClock, contract};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let clock = TestClock::new();
//! // The test controls the clock of this store. The suite makes time pass.
//! contract::run(&MemoryStore::with_clock(clock.store_clock()), &clock).await;
//! # }
//! ```
//!
//! For a store behind a network, with its own clock, the suite runs in real time:
//!
//! ```no_run
//! # use campanile_idempotency::MemoryStore;
//! use campanile_test::contract::{self, RealTime};
//!
//! # async fn connect() -> MemoryStore { MemoryStore::new() }
//! #[tokio::test]
//! async fn it_keeps_the_contract() {
//!     contract::run(&connect().await, &RealTime).await;
//! }
//! ```
//!
//! The suite generates its own namespace, so that it can run repeatedly against one server and
//! alongside other users of the server. Each answer is compared with [`step`](campanile_core::step)
//! at the answer's own `now`, and the name of each promise states what it checks. [`differential`]
//! continues from there with any number of random operations.
//!
//! [`run_expire`] is the suite of stores for operators that change when entries expire.
//!
//! The suite of [`run`] works through [`Store::apply`]. It therefore cannot test what the store does with
//! bytes that are not an entry, when its clock goes back, or when it loses data.
//!
//! [`Store::apply`]: campanile_idempotency::Store::apply

mod batches;
mod checker;
mod differential;
mod expire;
mod histories;
mod payloads;
mod races;
mod situations;
mod stale;
mod steps;
mod table;
mod time;
mod violation;

use campanile_idempotency::{ExpireStore, Store};

use self::checker::ModelChecker;
pub use self::differential::differential;
pub use self::time::{RealTime, Time};
pub use self::violation::Violation;

/// Tests every promise on the store.
///
/// # Panics
/// Panics with the list of broken promises if there are any.
pub async fn run<S: Store>(store: &S, time: &impl Time) {
    assert_none(&violations(store, time).await);
}

/// Tests on the store that an operator expires only what may expire. The suite uses [`Store::apply`] and
/// [`InspectStore::inspect`] as well.
///
/// # Panics
/// Panics with the list of broken promises if there are any.
///
/// [`Store::apply`]: campanile_idempotency::Store::apply
/// [`InspectStore::inspect`]: campanile_idempotency::InspectStore::inspect
pub async fn run_expire<S: ExpireStore>(store: &S, time: &impl Time) {
    assert_none(&expire_violations(store, time).await);
}

fn assert_none(violations: &[Violation]) {
    assert!(
        violations.is_empty(),
        "the store broke its contract:\n{}",
        violations.iter().map(|v| format!("* {v}\n")).collect::<String>()
    );
}

/// Checks each promise on a namespace of its own, and collects the broken ones.
macro_rules! promises {
    ($store:expr, $time:expr; $($module:ident { $($promise:ident)* })*) => {{
        let mut found = Vec::new();
        $($(
            let checker = ModelChecker::new($store, $time);
            if let Err(what) = $module::$promise(&checker).await {
                found.push(Violation::new(stringify!($promise), what));
            }
        )*)*
        found
    }};
}

/// Like [`run_expire`], but collects the broken promises instead of panicking.
pub async fn expire_violations<S: ExpireStore>(store: &S, time: &impl Time) -> Vec<Violation> {
    promises! { store, time;
        expire {
            expiry_is_set_in_every_situation
            recent_grant_is_kept_in_every_situation
            changed_entry_is_kept_in_every_situation
            expired_entry_is_absent
            token_after_expiry_is_higher
            each_of_many_is_decided_by_itself
        }
    }
}

/// Like [`run`], but collects the broken promises instead of panicking.
pub async fn violations<S: Store>(store: &S, time: &impl Time) -> Vec<Violation> {
    promises! { store, time;
        table {
            acquire_by_another_in_every_situation
            acquire_repeated_in_every_situation
            renew_in_every_situation
            complete_in_every_situation
            fail_in_every_situation
            release_of_what_ran_in_every_situation
            release_of_what_never_ran_in_every_situation
            cancel_in_every_situation
            record_step_in_every_situation
            reject_in_every_situation
            redrive_in_every_situation
            forced_redrive_in_every_situation
        }
        stale {
            only_token_and_nonce_together_are_the_grant
            a_stale_grant_changes_nothing
            an_absent_entry_has_no_grant
        }
        histories {
            tokens_rise_with_each_grant
            no_token_is_below_the_floor
            a_grant_without_a_token_left_is_refused_and_nothing_is_written
            an_attempt_is_counted_when_it_is_granted
            a_key_that_is_not_interrupted_runs_out_of_attempts
            attempts_that_ran_are_handed_back_eight_times
            the_last_error_is_told_by_the_give_up_lock
            a_give_up_that_runs_out_counts_and_one_that_is_let_go_does_not
            a_renewal_never_shortens_the_lock
            a_repeated_failure_does_not_move_the_next_attempt
            a_lock_longer_than_the_longest_is_cut
            an_error_longer_than_is_kept_is_cut
            an_entry_lives_as_long_as_it_is_retained
        }
        payloads {
            another_payload_is_a_mismatch_in_every_state
            a_key_that_was_never_tried_may_change_its_payload
            no_fingerprint_matches_every_payload
            a_reply_comes_back_byte_for_byte
        }
        steps {
            a_step_is_kept_until_its_key_is_completed
            the_first_result_of_a_step_is_kept
            a_step_is_not_seen_before_the_lock_is_granted
            a_step_beyond_the_limits_is_refused
        }
        batches {
            a_batch_is_answered_in_its_order
            one_keys_refusal_does_not_touch_its_neighbours
            a_full_batch_is_answered_in_full
        }
        races {
            of_many_who_acquire_at_once_one_is_granted
            of_completion_and_failure_at_once_one_wins
        }
        differential {
            random_operations_answer_as_step_does
        }
    }
}
