//! Operations for tests.

use std::time::Duration;

use campanile_core::{FencingToken, Grant, Operation, Owner};

fn owner() -> Owner {
    Owner::new(7).unwrap()
}

pub(crate) fn acquire() -> Operation {
    Operation::Acquire {
        owner: owner(),
        ttl: Duration::from_secs(30),
        max_attempts: 5,
        fingerprint: None,
        floor: FencingToken::ZERO,
        details: None,
    }
}

/// Completes the lock that [`acquire`] was granted with this token.
pub(crate) fn complete(token: FencingToken) -> Operation {
    Operation::Complete {
        grant: Grant { token, owner: owner() },
        attempt: 1,
        fingerprint: None,
        reply: None,
        details: None,
    }
}
