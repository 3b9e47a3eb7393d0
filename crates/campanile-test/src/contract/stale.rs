//! Only the last grant changes an entry.

use std::time::Duration;

use campanile_core::{FencingToken, Grant, Operation, Reply};
use campanile_idempotency::Store;

use super::Time;
use super::situations::Situation;
use super::witness::{BRIEF, Kept, LONG, Witness, acquire, complete, fail, owner, reject};

/// Lists every operation that names a grant.
fn operations(grant: Grant) -> [Operation; 6] {
    [
        Operation::Renew { grant, ttl: LONG },
        complete(grant),
        fail(grant, Duration::ZERO),
        Operation::Release { grant, ran: true },
        Operation::Release { grant, ran: false },
        reject(grant),
    ]
}

/// After a failover to a slower clock, two grants can have the same token. With the nonce alone, a
/// delayed acquire could pass as its own successor.
pub(super) async fn only_token_and_nonce_together_are_the_grant<S: Store, T: Time>(
    witness: &Witness<'_, S, T>,
) -> Kept {
    for situation in Situation::ALL {
        if situation == Situation::Absent {
            continue;
        }
        let (key, mine) = witness.bring(situation).await?;
        let token = |by: i64| FencingToken::new(mine.token.get().saturating_add_signed(by));
        let others = [
            (mine.token, owner()),
            (token(-1).expect("smaller"), mine.owner),
            (token(1).expect("a bit larger"), mine.owner),
        ];
        for (token, owner) in others {
            for operation in operations(Grant { token, owner }) {
                witness.expect(&key, operation, Reply::Lost).await?;
            }
        }
        let cancel = Operation::Cancel { owner: owner() };
        witness.expect(&key, cancel, Reply::Lost).await?;
        witness.reveal(&key, mine).await?;
    }
    Ok(())
}

/// Once its lock has expired and has been taken over, a grant changes nothing, neither while the
/// next owner works nor after that owner has settled the entry.
pub(super) async fn a_stale_grant_changes_nothing<S: Store, T: Time>(
    witness: &Witness<'_, S, T>,
) -> Kept {
    let ends: [fn(Grant) -> Operation; 5] = [
        |grant| Operation::Renew { grant, ttl: LONG },
        complete,
        |grant| fail(grant, Duration::ZERO),
        |grant| Operation::Release { grant, ran: true },
        reject,
    ];
    for end in ends {
        let key = witness.key();
        let stale = witness.grant(&key, acquire(BRIEF)).await?;
        witness.wait(BRIEF).await?;
        let mine = witness.grant(&key, acquire(LONG)).await?;
        for operation in operations(stale) {
            witness.expect(&key, operation, Reply::Lost).await?;
        }
        witness.apply(&key, end(mine)).await?;
        for operation in operations(stale) {
            witness.expect(&key, operation, Reply::Lost).await?;
        }
        witness.reveal(&key, mine).await?;
    }
    Ok(())
}

/// The exception is a completion, which is adopted: its handler has run, and no other has.
pub(super) async fn an_absent_entry_has_no_grant<S: Store, T: Time>(
    witness: &Witness<'_, S, T>,
) -> Kept {
    let (_, nobodys) = witness.bring(Situation::Absent).await?;
    for operation in operations(nobodys) {
        let key = witness.key();
        let adopted = matches!(operation, Operation::Complete { .. });
        let expected = if adopted { Reply::Completed } else { Reply::Lost };
        witness.expect(&key, operation, expected).await?;
        witness.reveal(&key, nobodys).await?;
    }
    Ok(())
}
