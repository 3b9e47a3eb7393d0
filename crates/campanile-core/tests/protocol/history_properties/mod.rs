//! What must hold of a whole history: of all steps of a world's clients taken together.
//!
//! The protocol's rules, and where each is tried:
//!
//! 1. compare-and-set: `a_stale_grant_changes_nothing`,
//!    `an_expired_lock_that_nobody_took_still_belongs_to_its_grant`
//! 2. the token: `the_token_rises_with_each_grant_of_a_key`,
//!    `a_token_is_told_to_one_owner_and_for_one_attempt`
//! 3. the entry outlives the lock: `no_operation_deletes_an_entry`, `poison_ends`
//! 4. attempts: `an_attempt_is_counted_when_the_lock_is_acquired`,
//!    `the_attempt_is_the_number_of_grants_less_those_that_were_handed_back`,
//!    `a_release_hands_the_attempt_back_a_bounded_number_of_times`
//! 5. repeats: `a_repeat_at_once_gives_the_same_answer_and_changes_nothing`,
//!    `a_repeat_later_gives_the_same_answer_and_counts_nothing`
//! 6. the store's clock: `only_how_far_the_stores_clock_is_decides`,
//!    `who_waits_as_long_as_it_was_told_is_granted`,
//!    `no_two_clients_hold_a_lock_by_their_own_clocks`
//! 7. a lock held by another: `a_live_lock_is_granted_to_nobody_else`
//! 8. the unreadable: `whatever_is_readable_comes_back_as_it_was_and_nothing_else_is_read`
//! 9. another payload: `another_payload_is_refused_and_told_nothing`,
//!    `a_mismatch_is_never_the_other_payloads_reply`
//! 10. the ends: `only_reject_makes_failed`, `a_second_effect_has_a_cause`,
//!     `dead_letters_are_at_most_one_and_the_excused`

mod attempts;
mod causes;
mod clock;
mod payloads;
mod poison;
mod reach;
mod tokens;
