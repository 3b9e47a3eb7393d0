//! Properties of a whole history: of all steps of the simulated clients taken together.
//!
//! The rules of the protocol, and the tests of each:
//!
//! 1. Compare-and-set: `stale_grant_changes_nothing`,
//!    `expired_lock_belongs_to_its_grant_until_taken_over`
//! 2. The token: `token_increases_with_each_grant_of_a_key`,
//!    `token_belongs_to_one_owner_and_attempt`
//! 3. The entry outlives the lock: `no_operation_deletes_an_entry`,
//!    `poison_key_runs_out_of_attempts`
//! 4. Attempts: `attempt_is_counted_when_lock_is_acquired`,
//!    `attempt_equals_number_of_counted_grants`,
//!    `release_uncounts_attempt_a_bounded_number_of_times`
//! 5. Repeats: `immediate_repeat_gets_same_reply_and_changes_nothing`,
//!    `later_repeat_gets_same_reply_and_counts_nothing`
//! 6. The store's clock: `shifting_entry_and_clock_together_changes_nothing`,
//!    `acquire_after_reported_wait_is_granted`,
//!    `locks_never_overlap_by_the_clocks_of_their_clients`
//! 7. Mutual exclusion: `live_lock_is_not_granted_to_others`
//! 8. Unreadable entries: `readable_bytes_round_trip_and_others_are_rejected`
//! 9. A different payload: `different_payload_is_mismatch_and_changes_nothing`,
//!    `reply_never_belongs_to_another_payload`
//! 10. Final states: `only_reject_makes_failed`, `repeated_effect_has_a_cause`,
//!     `repeated_dead_letter_has_a_cause`

mod attempts;
mod clock;
mod coverage;
mod mutual_exclusion;
mod payloads;
mod poison;
mod tokens;
