//! Repairs: the plan, and that it changes only the entry that it was made for.

use std::future::pending;
use std::time::Duration;

use campanile_admin::AdminError;
use campanile_admin::entries::{RepairOutcome, RepairPlan, inspect};
use campanile_core::{BoxError, LockLost, Operation, Reply, State, error};
use campanile_idempotency::{
    IdempotencyConfig, InspectStore, LockKeeper, MemoryStore, Runner, StoreError,
};
use campanile_test::TestClock;
use tokio::sync::oneshot;

use crate::list::{Broken, WithGarbage};
use crate::planter::{DAY, MINUTE, NAMESPACE, Planter, TTL, store_key};

const RECORD: &str = "payments/3@42";

async fn reopen(planter: &Planter, force: bool) -> RepairPlan {
    RepairPlan::reopen(&planter.store, &planter.key(), force).await.unwrap()
}

async fn unlock(planter: &Planter) -> RepairPlan {
    RepairPlan::unlock(&planter.store, &planter.key()).await.unwrap()
}

fn state(planter: &Planter) -> State {
    planter.store.entry(&planter.key()).unwrap().state()
}

#[tokio::test]
async fn reopened_key_gets_all_its_attempts() {
    let planter = Planter::new("p-1");
    planter.exhaust(RECORD);
    planter.give_up(planter.acquire(RECORD));
    let plan = reopen(&planter, false).await;
    let text = plan.to_string();
    assert!(text.contains("FAILED: given up") && text.contains("counted from 0 again"), "{text}");
    assert_eq!(state(&planter), State::Failed, "a plan changes nothing");
    assert_eq!(plan.apply(&planter.store).await.unwrap(), RepairOutcome::Done);
    planter.acquire(RECORD);
    assert_eq!(planter.store.entry(&planter.key()).unwrap().attempt(), 1);
}

#[tokio::test]
async fn reopening_needs_force_unless_given_up() {
    let plans = [
        (State::Completed, "To run it again, use force"),
        (State::Retrying, "To give it all its attempts again, use force"),
    ];
    for (before, reason) in plans {
        let planter = Planter::new("p-1");
        let grant = planter.acquire(RECORD);
        match before {
            State::Completed => planter.complete(grant, RECORD),
            _ => planter.fail(grant, MINUTE, false),
        }
        let plan = reopen(&planter, false).await;
        assert!(!plan.is_possible() && plan.effect().contains(reason), "{plan}");
        assert_eq!(plan.apply(&planter.store).await.unwrap(), RepairOutcome::Impossible);
        assert_eq!(state(&planter), before);
        let plan = reopen(&planter, true).await;
        assert_eq!(plan.apply(&planter.store).await.unwrap(), RepairOutcome::Done);
        planter.acquire(RECORD);
    }
}

#[tokio::test]
async fn processed_absent_and_reopened_keys_are_not_reopened() {
    let planter = Planter::new("p-1");
    assert!(reopen(&planter, true).await.effect().contains("There is no entry"));
    let grant = planter.acquire(RECORD);
    assert!(reopen(&planter, true).await.effect().contains("It is being processed"));
    planter.advance(TTL);
    assert!(reopen(&planter, true).await.effect().contains("Its owner is gone"));
    planter.give_up(grant);
    reopen(&planter, false).await.apply(&planter.store).await.unwrap();
    let plan = reopen(&planter, true).await;
    assert!(!plan.is_possible() && plan.effect().contains("reopened already"));
}

#[tokio::test]
async fn key_that_was_locked_meanwhile_is_not_reopened() {
    let planter = Planter::new("p-1");
    planter.fail(planter.acquire(RECORD), Duration::ZERO, false);
    let plan = reopen(&planter, true).await;
    planter.acquire(RECORD);
    assert_eq!(plan.apply(&planter.store).await.unwrap(), RepairOutcome::Changed);
    assert_eq!(state(&planter), State::Processing);
}

#[tokio::test]
async fn unlocked_owner_is_refused_and_next_token_is_higher() {
    let planter = Planter::new("p-1");
    let old = planter.acquire(RECORD);
    let plan = unlock(&planter).await;
    assert!(plan.effect().contains("perhaps at the same time"), "{plan}");
    assert_eq!(state(&planter), State::Processing, "a plan changes nothing");
    assert_eq!(plan.apply(&planter.store).await.unwrap(), RepairOutcome::Done);
    let text = inspect(&planter.store, &planter.key()).await.unwrap().to_string();
    assert!(text.contains("unlocked by an operator"), "{text}");

    let renewed = planter.apply(Operation::Renew { grant: old, ttl: TTL });
    assert_eq!(renewed, Reply::Settled(State::Retrying));
    let new = planter.acquire(RECORD);
    assert!(new.token > old.token);
    let (attempt, fingerprint, reply, details) = (1, None, None, None);
    let late = Operation::Complete { grant: old, attempt, fingerprint, reply, details };
    assert_eq!(planter.apply(late), Reply::Lost);
    assert_eq!(state(&planter), State::Processing);
}

#[tokio::test]
async fn unlocked_key_keeps_the_error_of_its_handler() {
    let planter = Planter::new("p-1");
    planter.fail(planter.acquire(RECORD), Duration::ZERO, false);
    // The second unlock does not add to the text.
    for _ in 0..2 {
        planter.acquire(RECORD);
        unlock(&planter).await.apply(&planter.store).await.unwrap();
        let report = inspect(&planter.store, &planter.key()).await.unwrap();
        let error = report.entry().unwrap().error().unwrap();
        assert_eq!(error, "unlocked by an operator; the last error before: card declined");
    }
}

#[tokio::test(start_paused = true)]
async fn handler_of_an_unlocked_key_ends_at_its_next_renewal() {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.store_clock());
    let (keeper, task) = LockKeeper::pair(store.clone(), clock.keeper_clock());
    tokio::spawn(task);
    let runner = Runner::new(keeper, IdempotencyConfig::new(NAMESPACE).with_lock_ttl(TTL)).unwrap();
    let (start, started) = oneshot::channel();
    let run = runner.run("p-1", |_| async {
        start.send(()).unwrap();
        pending::<Result<(), BoxError>>().await
    });
    let unlock = async {
        started.await.unwrap();
        let plan = RepairPlan::unlock(&store, &store_key("p-1")).await.unwrap();
        plan.apply(&store).await.unwrap()
    };
    let (ran, unlocked) = tokio::join!(run, unlock);
    assert_eq!(unlocked, RepairOutcome::Done);
    let error = ran.unwrap_err();
    assert!(error::sources(&*error).any(|source| source.is::<LockLost>()), "{error:?}");
    assert!(clock.elapsed() <= TTL / 3 + Duration::from_millis(2), "{:?}", clock.elapsed());
    assert_eq!(store.entry(&store_key("p-1")).unwrap().state(), State::Retrying);
}

#[tokio::test]
async fn unlocking_twice_is_done_once() {
    let planter = Planter::new("p-1");
    planter.acquire(RECORD);
    let plan = unlock(&planter).await;
    for _ in 0..2 {
        assert_eq!(plan.apply(&planter.store).await.unwrap(), RepairOutcome::Done);
    }
    assert!(unlock(&planter).await.effect().contains("there is no lock"));
}

#[tokio::test]
async fn key_with_a_new_owner_is_not_unlocked() {
    let planter = Planter::new("p-1");
    planter.acquire(RECORD);
    planter.advance(TTL);
    let plan = unlock(&planter).await;
    assert!(plan.effect().contains("has expired"), "{plan}");
    planter.acquire(RECORD);
    assert_eq!(plan.apply(&planter.store).await.unwrap(), RepairOutcome::Changed);
    assert_eq!(state(&planter), State::Processing);
}

#[tokio::test]
async fn key_that_was_settled_meanwhile_is_not_unlocked() {
    let planter = Planter::new("p-1");
    let grant = planter.acquire(RECORD);
    let plan = unlock(&planter).await;
    planter.complete(grant, RECORD);
    assert_eq!(plan.apply(&planter.store).await.unwrap(), RepairOutcome::Changed);
    assert_eq!(state(&planter), State::Completed);
}

#[tokio::test]
async fn unlocked_give_up_keeps_the_error_of_the_handler() {
    let planter = Planter::new("p-1");
    planter.exhaust(RECORD);
    planter.acquire(RECORD);
    unlock(&planter).await.apply(&planter.store).await.unwrap();
    let entry = planter.store.entry(&planter.key()).unwrap();
    assert_eq!((entry.error().as_deref(), entry.give_ups()), (Some("card declined"), 0));
}

async fn expire(planter: &Planter, after: Duration) -> RepairPlan {
    RepairPlan::expire(&planter.store, &planter.key(), after).await.unwrap()
}

#[tokio::test]
async fn entry_expires_when_the_operator_says() {
    let planter = Planter::new("p-1");
    planter.complete(planter.acquire(RECORD), RECORD);
    let plan = expire(&planter, 2 * MINUTE).await;
    let text = plan.to_string();
    assert!(text.contains("expires 2 min after the change. A delivery"), "{text}");
    assert!(text.contains("runs the handler again"), "{text}");
    planter.advance(MINUTE);
    assert_eq!(plan.apply(&planter.store).await.unwrap(), RepairOutcome::Done);
    planter.advance(2 * MINUTE - Duration::from_secs(1));
    assert_eq!(state(&planter), State::Completed);
    planter.advance(Duration::from_secs(1));
    assert!(planter.store.entry(&planter.key()).is_none());
    assert!(expire(&planter, DAY).await.effect().contains("There is no entry"));
}

#[tokio::test]
async fn entry_is_kept_longer_or_deleted_at_once() {
    let planter = Planter::new("p-1");
    planter.give_up(planter.acquire(RECORD));
    expire(&planter, 90 * DAY).await.apply(&planter.store).await.unwrap();
    planter.advance(89 * DAY);
    assert_eq!(state(&planter), State::Failed);
    let plan = expire(&planter, Duration::ZERO).await;
    assert!(plan.effect().contains("It is deleted."), "{plan}");
    assert_eq!(plan.apply(&planter.store).await.unwrap(), RepairOutcome::Done);
    assert!(planter.store.entry(&planter.key()).is_none());
}

#[tokio::test]
async fn locked_and_recent_entries_do_not_expire() {
    let planter = Planter::new("p-1");
    let grant = planter.acquire(RECORD);
    let plan = expire(&planter, DAY).await;
    assert!(!plan.is_possible() && plan.effect().contains("It is being processed"), "{plan}");
    assert_eq!(plan.apply(&planter.store).await.unwrap(), RepairOutcome::Impossible);
    planter.complete(grant, RECORD);
    let plan = expire(&planter, Duration::from_secs(59)).await;
    assert!(!plan.is_possible() && plan.effect().contains("less than a minute"), "{plan}");
    assert!(expire(&planter, MINUTE).await.is_possible());
}

#[tokio::test]
async fn key_that_was_taken_meanwhile_does_not_expire() {
    let planter = Planter::new("p-1");
    planter.fail(planter.acquire(RECORD), Duration::ZERO, false);
    let plan = expire(&planter, MINUTE).await;
    assert!(plan.effect().contains("has all its attempts"), "{plan}");
    planter.acquire(RECORD);
    assert_eq!(plan.apply(&planter.store).await.unwrap(), RepairOutcome::Changed);
    planter.advance(2 * MINUTE);
    assert_eq!(state(&planter), State::Processing);
}

#[tokio::test]
async fn unreadable_value_is_not_repaired() {
    let store = WithGarbage(Planter::new("p-1").store);
    for plan in [
        RepairPlan::reopen(&store, &store_key("garbage"), true).await.unwrap(),
        RepairPlan::unlock(&store, &store_key("garbage")).await.unwrap(),
        RepairPlan::expire(&store, &store_key("garbage"), DAY).await.unwrap(),
    ] {
        assert!(!plan.is_possible() && plan.effect().contains("no entry of this version"));
        assert_eq!(plan.apply(&store).await.unwrap(), RepairOutcome::Impossible);
    }
}

#[tokio::test]
async fn store_errors_say_whose_fault_it_is() {
    let read = async |error: fn(&'static str) -> StoreError| {
        let store = Broken(error);
        assert!(store.inspect(&store_key("p-1")).await.is_err());
        inspect(&store, &store_key("p-1")).await.unwrap_err()
    };
    let wrong = read(StoreError::misconfigured).await;
    assert!(matches!(wrong, AdminError::Config(_)), "{wrong}");
    assert!(wrong.to_string().contains("16 buckets, not 64"), "{wrong}");
    let away = read(StoreError::unavailable).await;
    assert!(matches!(away, AdminError::Unavailable { .. }), "{away}");
}
