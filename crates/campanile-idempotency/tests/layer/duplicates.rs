//! Duplicates that meet the running first: they wait, and are answered from how it ends.

use std::time::Duration;

use bytes::Bytes;
use campanile_core::{BoxError, Outcome, Reply, Request, error};
use campanile_idempotency::policy::{OnGivenUp, OnLocked};
use campanile_idempotency::{IdempotencyError, Settled, Store, WaitForLock, reply};
use campanile_test::faults::Fault;
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceBuilder, service_fn};

use crate::world::{
    Guarding, TTL, TestLayer, World, exhausted, failing, fingerprinting, is_pending, paying,
    refusal, request, settle_down, store_key,
};

const WORK: Duration = Duration::from_secs(5);

fn patient(world: &World) -> TestLayer {
    world.layer().with_locked(OnLocked::Wait { at_most: Duration::from_secs(3600) })
}

/// The words of the commands that reached the store.
fn words(world: &World) -> Vec<&'static str> {
    world.store.commands().iter().map(|command| command.operation.name()).collect()
}

/// The signal of the holder that is in the way.
fn signal<T: std::fmt::Debug>(called: &super::world::Called<T>) -> Settled {
    match refusal(called) {
        IdempotencyError::Locked { settled: Some(settled), .. } => settled.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_duplicates_of_a_running_key_cost_no_operation_and_get_the_first_runs_reply() {
    const DUPLICATES: usize = 10_000;
    let world = World::new();
    let service =
        patient(&world).with_reply(reply::bytes()).layer(service_fn(async |_: Request<()>| {
            sleep(WORK).await;
            Ok::<_, BoxError>(Bytes::from_static(b"receipt"))
        }));
    let first = service.start(request("p-1"));
    settle_down().await;
    let duplicates: Vec<_> = (0..DUPLICATES).map(|_| service.start(request("p-1"))).collect();
    assert_eq!(first.await.unwrap().unwrap(), Outcome::Processed(Bytes::from_static(b"receipt")));
    for duplicate in duplicates {
        let Outcome::Duplicate(duplicate) = duplicate.await.unwrap().unwrap() else {
            panic!("no duplicate");
        };
        assert_eq!(duplicate.reply.as_deref(), Some(&b"receipt"[..]));
        assert_eq!(duplicate.attempts, 1);
        assert_eq!(duplicate.completed_at, world.entry("p-1").unwrap().at());
    }
    assert_eq!(words(&world), ["acquire", "complete"]);
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn if_the_holder_fails_all_who_wait_learn_when_the_next_attempt_is_due() {
    let world = World::new();
    let service = patient(&world).layer(service_fn(async |_: Request<()>| {
        sleep(WORK).await;
        Err::<(), BoxError>(error::retry_after("busy", Duration::from_secs(7)).into())
    }));
    let first = service.start(request("p-1"));
    settle_down().await;
    let waiters: Vec<_> = (0..100).map(|_| service.start(request("p-1"))).collect();
    first.await.unwrap().unwrap_err();
    for waiter in waiters {
        match refusal(&waiter.await.unwrap()) {
            IdempotencyError::BackingOff { retry_after, attempts: 1, .. } => {
                let due = Duration::from_millis(6_900)..=Duration::from_secs(7);
                assert!(due.contains(retry_after), "{retry_after:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(words(&world), ["acquire", "fail"]);
}

#[tokio::test(start_paused = true)]
async fn if_the_holder_fails_one_of_those_who_wait_is_the_next_to_try() {
    let world = World::new();
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(Duration::from_secs(3600)).and_failures())
        .layer(world.layer())
        .service_fn(async |request: Request<()>| {
            sleep(WORK).await;
            match request.lock().unwrap().attempt() {
                1 => Err::<(), BoxError>("busy".into()),
                _ => Ok(()),
            }
        });
    let calls: Vec<_> = (0..100).map(|_| service.start(request("p-1"))).collect();
    let mut processed = 0;
    for call in calls {
        let outcome = call.await.unwrap().unwrap();
        processed += usize::from(outcome == Outcome::Processed(()));
    }
    assert_eq!(processed, 1);
    assert_eq!(words(&world), ["acquire", "fail", "acquire", "complete"]);
}

#[tokio::test(start_paused = true)]
async fn if_the_holder_is_given_up_all_who_wait_are_parked() {
    let world = World::new();
    let layer = patient(&world).with_given_up(OnGivenUp::Reject);
    let service = layer.layer(service_fn(async |_: Request<()>| {
        sleep(WORK).await;
        Err::<(), BoxError>(error::permanent("card expired").into())
    }));
    let calls: Vec<_> = (0..100).map(|_| service.start(request("p-1"))).collect();
    for call in calls {
        match call.await.unwrap().unwrap() {
            Outcome::Parked(parked) => {
                assert_eq!(parked.error.as_deref(), Some("permanent error: card expired"));
                assert_eq!(parked.attempts, 1);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(words(&world), ["acquire", "reject"]);
}

#[tokio::test(start_paused = true)]
async fn if_the_holder_hands_its_attempt_back_one_of_those_who_wait_acquires() {
    let world = World::new();
    let service = patient(&world).layer(service_fn(async |_: Request<()>| {
        sleep(WORK).await;
        Ok::<_, BoxError>(())
    }));
    let interrupted = request("p-1");
    let record = interrupted.record().clone();
    let first = service.start(interrupted);
    settle_down().await;
    let waiters: Vec<_> = (0..100).map(|_| service.start(request("p-1"))).collect();
    assert!(is_pending(&waiters[0]).await);
    record.set_interrupted();
    first.abort();
    let mut processed = 0;
    for waiter in waiters {
        processed += usize::from(waiter.await.unwrap().unwrap() == Outcome::Processed(()));
    }
    assert_eq!(processed, 1);
    assert_eq!(words(&world), ["acquire", "release", "acquire", "complete"]);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_key_that_is_held_elsewhere_asks_the_store_together() {
    let world = World::new();
    let elsewhere = world.neighbour();
    let (neighbour, mut held) = elsewhere.staged(elsewhere.layer());
    let holder = neighbour.start(request("p-1"));
    let (_, respond) = held.next_request().await.unwrap();
    // While the answer is on its way, others come.
    world.store.next_of("acquire", Fault::Slow(Duration::from_millis(100)));
    let (service, _stage) = world.staged(patient(&world));
    let waiters: Vec<_> = (0..1_000).map(|_| service.start(request("p-1"))).collect();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(words(&world), ["acquire"]);
    respond.send_response("done");
    holder.await.unwrap().unwrap();
    for waiter in waiters {
        assert!(waiter.await.unwrap().unwrap().is_duplicate());
    }
    assert_eq!(words(&world), ["acquire", "acquire"]);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_with_another_payload_never_gets_the_holders_answer() {
    let world = World::new();
    let layer = fingerprinting(&world)
        .with_locked(OnLocked::Wait { at_most: WORK * 2 })
        .with_reply(reply::bytes());
    let service = layer.layer(service_fn(async |_: Request<()>| {
        sleep(WORK).await;
        Ok::<_, BoxError>(Bytes::from_static(b"100 cents"))
    }));
    let first = service.start(paying("p-1", "100"));
    settle_down().await;
    let (same, other) = (service.start(paying("p-1", "100")), service.start(paying("p-1", "999")));
    first.await.unwrap().unwrap();
    assert!(same.await.unwrap().unwrap().is_duplicate());
    let other = other.await.unwrap();
    assert!(matches!(refusal(&other), IdempotencyError::Mismatch { .. }), "{other:?}");
}

#[tokio::test(start_paused = true)]
async fn a_completion_that_was_repeated_is_asked_for_because_only_the_store_knows_its_time() {
    let world = World::new();
    let service = patient(&world).layer(service_fn(async |_: Request<()>| {
        sleep(WORK).await;
        Ok::<_, BoxError>(())
    }));
    world.store.next_of("complete", Fault::LoseReply);
    let first = service.start(request("p-1"));
    settle_down().await;
    let waiter = service.start(request("p-1"));
    first.await.unwrap().unwrap();
    let Outcome::Duplicate(duplicate) = waiter.await.unwrap().unwrap() else {
        panic!("no duplicate");
    };
    assert_eq!(duplicate.completed_at, world.entry("p-1").unwrap().at());
    assert_eq!(words(&world), ["acquire", "complete", "complete", "acquire"]);
}

#[tokio::test(start_paused = true)]
async fn how_a_holder_ended_is_known_while_somebody_has_its_signal_and_a_second_at_most() {
    let world = World::new();
    let service = world.layer().layer(service_fn(async |_: Request<()>| {
        sleep(WORK).await;
        Ok::<_, BoxError>(())
    }));
    let first = service.start(request("p-1"));
    settle_down().await;
    let settled = signal(&service.run("p-1").await);
    first.await.unwrap().unwrap();
    let end = Instant::now();
    settled.clone().await;
    world.store.forget_calls();

    sleep(Duration::from_millis(900)).await;
    assert!(service.run("p-1").await.unwrap().is_duplicate());
    assert!(words(&world).is_empty(), "after {:?}: {:?}", end.elapsed(), words(&world));
    sleep(Duration::from_millis(100)).await;
    assert!(service.run("p-1").await.unwrap().is_duplicate());
    assert_eq!(words(&world), ["acquire"], "an operator may have reopened it");

    // And of another key, whose signal nobody keeps.
    let second = service.start(request("p-2"));
    settle_down().await;
    drop(signal(&service.run("p-2").await));
    second.await.unwrap().unwrap();
    world.store.forget_calls();
    assert!(service.run("p-2").await.unwrap().is_duplicate());
    assert_eq!(words(&world), ["acquire"]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_outlasts_the_holders_back_off_asks_the_store() {
    let world = World::new();
    let service = world.layer().layer(service_fn(async |_: Request<()>| {
        sleep(WORK).await;
        Err::<(), BoxError>(error::retry_after("busy", Duration::from_secs(7)).into())
    }));
    let first = service.start(request("p-1"));
    settle_down().await;
    let settled = signal(&service.run("p-1").await);
    first.await.unwrap().unwrap_err();
    let called = service.run("p-1").await;
    assert!(matches!(refusal(&called), IdempotencyError::BackingOff { .. }), "{called:?}");
    sleep(Duration::from_secs(7)).await;
    let called = service.run("p-1").await;
    assert!(matches!(refusal(&called), IdempotencyError::Failed(_)), "{called:?}");
    drop(settled);
    assert!(TTL > WORK, "no renewal in between");
    assert_eq!(words(&world), ["acquire", "fail", "acquire", "fail"]);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_reopened_meanwhile_is_tried_and_neither_parked_nor_kept_back() {
    let parks: fn() -> BoxError = || error::permanent("card expired").into();
    let waits: fn() -> BoxError = || error::retry_after("busy", Duration::from_secs(3600)).into();
    for fails in [parks, waits] {
        let world = World::new();
        let layer = world.layer().with_given_up(OnGivenUp::Reject);
        let service = layer.layer(service_fn(move |_: Request<()>| async move {
            sleep(WORK).await;
            Err::<(), BoxError>(fails())
        }));
        let first = service.start(request("p-1"));
        settle_down().await;
        let _settled = signal(&service.run("p-1").await);
        drop(first.await.unwrap());
        let token = world.entry("p-1").unwrap().token();
        let reopened = world.memory.redrive(store_key("p-1"), token, true).await;
        assert_eq!(reopened.unwrap(), Reply::Reopened);
        // An operator is not faster than that.
        sleep(Duration::from_secs(1)).await;
        world.store.forget_calls();
        drop(service.run("p-1").await);
        assert_eq!(words(&world)[0], "acquire");
        assert_eq!(world.entry("p-1").unwrap().attempt(), 1, "it was tried");
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_without_a_payload_to_compare_does_not_answer_a_waiter_with_one() {
    let world = World::new();
    let service = world.layer().layer(service_fn(async |_: Request<()>| {
        sleep(WORK).await;
        Ok::<_, BoxError>(())
    }));
    let first = service.start(request("p-1"));
    settle_down().await;
    let other = fingerprinting(&world).with_locked(OnLocked::Wait { at_most: WORK * 2 });
    let other = other.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    let waiter = other.start(paying("p-1", "100"));
    first.await.unwrap().unwrap();
    waiter.await.unwrap().unwrap();
    assert_eq!(words(&world), ["acquire", "complete", "acquire"]);
}

#[tokio::test(start_paused = true)]
async fn a_rejection_that_keeps_the_last_error_is_told_by_the_store() {
    let world = World::new();
    let layer = patient(&world).with_max_attempts(1).unwrap();
    let service = failing(&layer, || "declined".into());
    drop(service.run("p-1").await);
    sleep(Duration::from_secs(3600)).await;
    let called = service.run("p-1").await;
    let burial = exhausted(&called).take_lock().unwrap();
    let waiter = service.start(request("p-1"));
    assert!(is_pending(&waiter).await);
    burial.reject("").await.unwrap();
    let Outcome::Parked(parked) = waiter.await.unwrap().unwrap() else { panic!("parked") };
    assert_eq!(parked.error.as_deref(), Some("declined"));
}

/// What is learnt of a key by whoever asks is learnt by all who waited for that.
#[tokio::test(start_paused = true)]
async fn whoever_comes_while_the_store_is_asked_gets_the_same_answer() {
    let work: [fn() -> Result<(), BoxError>; 3] = [
        || Ok(()),
        || Err(error::permanent("card expired").into()),
        || Err(error::retry_after("busy", Duration::from_secs(60)).into()),
    ];
    for work in work {
        let world = World::new();
        let layer = patient(&world).with_given_up(OnGivenUp::Reject);
        let service = layer.layer(service_fn(move |_: Request<()>| async move { work() }));
        drop(service.run("p-1").await);
        world.store.forget_calls();
        world.store.next_of("acquire", Fault::Slow(Duration::from_millis(100)));
        let calls: Vec<_> = (0..100).map(|_| service.start(request("p-1"))).collect();
        let mut told = std::collections::BTreeSet::new();
        for call in calls {
            told.insert(match call.await.unwrap() {
                Ok(outcome) => format!("{outcome:?}"),
                Err(error) => error.to_string().split(" for ").next().unwrap().to_owned(),
            });
        }
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(words(&world), ["acquire"]);
    }
}
