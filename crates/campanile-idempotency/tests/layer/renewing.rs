//! A lock lives as long as its handler works.

use std::time::Duration;

use campanile_core::{Outcome, State};
use campanile_idempotency::IdempotencyError;
use campanile_idempotency::policy::OnAbandoned;
use campanile_test::faults::{Call, Fault};
use tokio::time::{Instant, sleep};

use crate::world::{Guarding, HOUR, TTL, World, is_pending, lock, refusal, request, settle_down};

/// When the calls with renewals came, as the time between one and the next.
fn pauses(start: Instant, calls: &[Call]) -> Vec<Duration> {
    let renewals = calls.iter().filter(|call| call.count("renew") > 0);
    let mut last = start;
    let pause = |call: &Call| {
        let pause = call.at - last;
        last = call.at;
        pause
    };
    renewals.map(pause).collect()
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_renewed_at_a_third_of_its_time_to_live() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let start = Instant::now();
    let call = service.start(request("p-1"));
    let (request, respond) = stage.next_request().await.unwrap();
    let lock = lock(&request);
    for _ in 0..200 {
        sleep(Duration::from_secs(1)).await;
        assert!(lock.remaining() > TTL / 2, "two thirds, less the margin and a second");
    }
    let pauses = pauses(start, &world.store.calls());
    // Less the jitter and the stroke; never more.
    let expected = TTL / 4..=TTL / 3 + Duration::from_millis(1);
    assert!(pauses.iter().all(|pause| expected.contains(pause)), "{pauses:?}");
    assert!((20..=26).contains(&pauses.len()), "{pauses:?}");

    respond.send_response("done");
    call.await.unwrap().unwrap();
    world.store.forget_calls();
    sleep(HOUR).await;
    assert_eq!(world.store.commands(), [], "what is settled is not renewed");
}

#[tokio::test(start_paused = true)]
async fn locks_are_renewed_in_batches() {
    const LOCKS: usize = 200;
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let mut stages = Vec::new();
    let start = Instant::now();
    for number in 0..LOCKS {
        drop(service.start(request(&format!("p-{number}"))));
        stages.push(stage.next_request().await.unwrap());
        sleep(Duration::from_millis(10)).await; // they come over two seconds
    }
    sleep(TTL * 10).await;
    let rounds = start.elapsed().as_millis() / (TTL / 3).as_millis();
    let calls = world.store.calls();
    let renewals: Vec<_> = calls.iter().map(|call| call.count("renew")).collect();
    let (total, calls) = (renewals.iter().sum::<usize>(), renewals.iter().filter(|n| **n > 0));
    assert!(total >= LOCKS * 29, "{total} renewals");
    let for_each_round = calls.count() as f64 / rounds as f64;
    assert!(for_each_round < 8.0, "{for_each_round} calls for {LOCKS} locks");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_reply_is_lost_is_repeated_and_loses_nothing() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let call = service.start(request("p-1"));
    let (request, respond) = stage.next_request().await.unwrap();
    world.store.next_of("renew", Fault::LoseReply);
    world.store.next_of("renew", Fault::LoseReply);
    sleep(TTL * 2 / 3).await;
    assert_eq!(world.store.count("renew"), 3);
    assert!(lock(&request).remaining() > TTL / 2);
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
}

/// The store may have decided long before its answer came.
#[tokio::test(start_paused = true)]
async fn a_renewal_counts_from_before_it_was_sent() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let _call = service.start(request("p-1"));
    let (request, _respond) = stage.next_request().await.unwrap();
    world.store.next_of("renew", Fault::Slow(TTL / 10));
    while lock(&request).remaining() <= TTL * 3 / 4 || world.store.count("renew") == 0 {
        sleep(Duration::from_millis(10)).await;
    }
    let expires = world.entry("p-1").unwrap().at();
    let deadline = world.clock.now() + lock(&request).remaining();
    let margin = expires.duration_since(deadline).unwrap();
    assert!((TTL / 10..TTL / 10 + Duration::from_millis(20)).contains(&margin), "{margin:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failed_round_of_renewals_loses_nothing() {
    for fault in [Fault::Refuse, Fault::LoseReply, Fault::Hang, Fault::HangReply, Fault::Panic] {
        let world = World::new();
        let (service, mut stage) = world.staged(world.layer());
        let call = service.start(request("p-1"));
        let (request, respond) = stage.next_request().await.unwrap();
        world.store.next_of("renew", fault);
        sleep(TTL * 5).await;
        assert!(lock(&request).check().is_ok(), "{fault:?}");
        respond.send_response("done");
        call.await.unwrap().unwrap();
        assert_eq!(world.entry("p-1").unwrap().attempt(), 1);
        world.assert_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_for_half_the_time_to_live_loses_no_lock() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let call = service.start(request("p-1"));
    let (request, respond) = stage.next_request().await.unwrap();
    for _ in 0..5 {
        world.store.always(Fault::Hang);
        sleep(TTL / 2).await;
        world.store.heal();
        sleep(TTL).await;
    }
    assert!(lock(&request).check().is_ok());
    respond.send_response("done");
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn commands_that_hang_do_not_hold_up_renewals() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let call = service.start(request("p-1"));
    let (request_of_one, respond) = stage.next_request().await.unwrap();
    world.store.always_of("acquire", Fault::Hang);
    world.store.always_of("cancel", Fault::Hang);
    for number in 0..500 {
        drop(service.start(request(&format!("other-{number}"))));
    }
    sleep(TTL * 5).await;
    assert!(lock(&request_of_one).check().is_ok());
    respond.send_response("done");
    world.store.heal();
    call.await.unwrap().unwrap();
}

/// The lock must not come back to life behind the completion.
#[tokio::test(start_paused = true)]
async fn a_renewal_has_ended_before_the_completion_is_sent() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    world.store.next_of("renew", Fault::HangReply);
    sleep(TTL / 3).await;
    assert_eq!(world.store.count("renew"), 1);
    respond.send_response("done");
    assert!(is_pending(&call).await);
    assert_eq!(world.store.count("complete"), 0);
    world.store.release();
    call.await.unwrap().unwrap();
    settle_down().await;
    assert_eq!(world.store.count("renew"), 1);
    assert_eq!(world.state("p-1"), Some(State::Completed));
}

/// Its answer must not be taken for that of another key, which has its place by then.
#[tokio::test(start_paused = true)]
async fn a_key_that_is_let_go_during_its_renewal_keeps_its_place_until_that_is_answered() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer().with_abandoned(OnAbandoned::Expire));
    let call = service.start(request("p-1"));
    let _held = stage.next_request().await.unwrap();
    world.store.next_of("renew", Fault::HangReply);
    sleep(TTL / 3).await;
    assert_eq!(world.store.count("renew"), 1);
    call.abort();
    settle_down().await;

    let other = service.start(request("p-2"));
    let (request_of_other, respond) = stage.next_request().await.unwrap();
    let called = service.run("p-1").await;
    let IdempotencyError::Locked { settled: Some(settled), .. } = refusal(&called) else {
        panic!("locked, here");
    };
    world.store.release();
    settled.clone().await;
    sleep(TTL * 2).await;
    assert!(lock(&request_of_other).check().is_ok());
    respond.send_response("done");
    other.await.unwrap().unwrap();
    world.assert_quiet().await;
}
