//! Only the last grant changes an entry.

use std::time::Duration;

use campanile_core::{FencingToken, Grant, Operation, Reply};
use campanile_idempotency::Store;

use super::Time;
use super::checker::{
    CheckResult, LONG_DURATION, ModelChecker, SHORT_DURATION, acquire, complete, fail, give_up,
    owner, record_step,
};
use super::situations::Situation;

/// Lists every operation that names a grant.
fn grant_operations(grant: Grant) -> [Operation; 7] {
    [
        Operation::Renew { grant, ttl: LONG_DURATION },
        complete(grant),
        fail(grant, Duration::ZERO),
        Operation::Release { grant, ran: true },
        Operation::Release { grant, ran: false },
        record_step(grant, "charge", b"ch-1"),
        give_up(grant),
    ]
}

/// After a failover to a slower clock, two grants can have the same token. With the nonce alone, a
/// delayed acquire could pass as its own successor.
pub(super) async fn only_token_and_nonce_together_are_the_grant<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    for situation in Situation::ALL {
        if situation == Situation::Absent {
            continue;
        }
        let (key, mine) = checker.prepare(situation).await?;
        let token = |by: i64| FencingToken::new(mine.token.get().saturating_add_signed(by));
        let others = [
            (mine.token, owner()),
            (token(-1).expect("smaller"), mine.owner),
            (token(1).expect("a bit larger"), mine.owner),
        ];
        for (token, owner) in others {
            for operation in grant_operations(Grant { token, owner }) {
                checker.expect(&key, operation, Reply::Lost).await?;
            }
        }
        let cancel = Operation::Cancel { owner: owner() };
        checker.expect(&key, cancel, Reply::Lost).await?;
        checker.probe(&key, mine).await?;
    }
    Ok(())
}

/// Once its lock has expired and has been taken over, a grant changes nothing, neither while the
/// next owner works nor after that owner has settled the entry.
pub(super) async fn a_stale_grant_changes_nothing<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let ends: [fn(Grant) -> Operation; 5] = [
        |grant| Operation::Renew { grant, ttl: LONG_DURATION },
        complete,
        |grant| fail(grant, Duration::ZERO),
        |grant| Operation::Release { grant, ran: true },
        give_up,
    ];
    for end in ends {
        let key = checker.key();
        let stale = checker.grant(&key, acquire(SHORT_DURATION)).await?;
        checker.wait(SHORT_DURATION).await?;
        let mine = checker.grant(&key, acquire(LONG_DURATION)).await?;
        for operation in grant_operations(stale) {
            checker.expect(&key, operation, Reply::Lost).await?;
        }
        checker.apply(&key, end(mine)).await?;
        for operation in grant_operations(stale) {
            checker.expect(&key, operation, Reply::Lost).await?;
        }
        checker.probe(&key, mine).await?;
    }
    Ok(())
}

/// The exception is a completion, which is adopted: its handler has run, and no other has.
pub(super) async fn an_absent_entry_has_no_grant<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let (_, unknown_grant) = checker.prepare(Situation::Absent).await?;
    for operation in grant_operations(unknown_grant) {
        let key = checker.key();
        let adopted = matches!(operation, Operation::Complete { .. });
        let expected = if adopted { Reply::Completed } else { Reply::Lost };
        checker.expect(&key, operation, expected).await?;
        checker.probe(&key, unknown_grant).await?;
    }
    Ok(())
}
