//! The notes below the table, one by one.

mod clamp;
mod grant;
mod limits;
mod order;

use std::time::{Duration, SystemTime};

use campanile_core::{FencingToken, Fingerprint, Operation, Reply, step};

use crate::draft::{Draft, ME, NOW, SECOND, owner, time};

const TTL: u64 = 30 * SECOND;

/// The fields of an acquire by `ME` that the tests vary.
struct Acquire {
    ttl: Duration,
    max_attempts: u16,
    fingerprint: Option<Fingerprint>,
    floor: FencingToken,
}

impl Acquire {
    const PLAIN: Self = Self {
        ttl: Duration::from_micros(TTL),
        max_attempts: 3,
        fingerprint: None,
        floor: FencingToken::ZERO,
    };

    fn operation(self) -> Operation {
        let Self { ttl, max_attempts, fingerprint, floor } = self;
        Operation::Acquire {
            owner: owner(ME),
            ttl,
            max_attempts,
            fingerprint,
            floor,
            details: None,
        }
    }
}

/// Asserts the entry and the reply that one step at `NOW` results in.
fn assert_step(before: Option<Draft>, operation: &Operation, after: Option<Draft>, reply: Reply) {
    assert_step_at(time(NOW), before, operation, after, reply);
}

fn assert_step_at(
    now: SystemTime,
    before: Option<Draft>,
    operation: &Operation,
    after: Option<Draft>,
    reply: Reply,
) {
    let stepped = step(before.as_ref().map(Draft::entry), operation, now);
    let expected = (after.as_ref().map(Draft::entry), reply);
    assert_eq!(stepped, expected, "{before:?} {operation:?}");
}
