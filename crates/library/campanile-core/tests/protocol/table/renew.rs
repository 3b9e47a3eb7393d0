//! `renew` in every situation.

use std::time::Duration;

use campanile_core::{Operation, Reply, State};

use super::{Becomes, Same, check, check_lost_to_others, check_one, p, p_giving_up};
use crate::draft::{Draft, NOW, SECOND, my_grant};

const TTL: u64 = 30 * SECOND;

fn renew() -> Operation {
    Operation::Renew { grant: my_grant(), ttl: Duration::from_micros(TTL) }
}

#[test]
fn renew_matches_table() {
    let renewed = |before: Draft| Becomes(Draft { at: NOW + TTL, ..before });
    check(
        &renew(),
        &[
            ("absent", Same, Reply::Lost),
            ("P mine, live", renewed(p()), Reply::Renewed),
            ("P mine, expired", renewed(p()), Reply::Renewed),
            ("P mine, giving up", renewed(p_giving_up()), Reply::Renewed),
            ("P other, live", Same, Reply::Lost),
            ("P other, expired", Same, Reply::Lost),
            ("R mine, waiting", Same, Reply::Settled(State::Retrying)),
            ("R mine, due", Same, Reply::Settled(State::Retrying)),
            ("R mine, released", Same, Reply::Settled(State::Retrying)),
            ("R other, waiting", Same, Reply::Lost),
            ("R other, due", Same, Reply::Lost),
            ("R other, released", Same, Reply::Lost),
            ("R other, permanent failure", Same, Reply::Lost),
            ("R other, exhausted", Same, Reply::Lost),
            ("R reopened", Same, Reply::Lost),
            ("C mine", Same, Reply::Settled(State::Completed)),
            ("C other", Same, Reply::Lost),
            ("F mine", Same, Reply::Settled(State::Failed)),
            ("F other", Same, Reply::Lost),
        ],
    );
    check_lost_to_others(&renew());
}

#[test]
fn renew_never_shortens_lock() {
    let before = Draft { at: NOW + TTL + 1, ..p() };
    check_one("P mine, longer", Some(before.clone()), &renew(), (Some(before), Reply::Renewed));
}
