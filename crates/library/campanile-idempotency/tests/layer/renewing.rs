//! A lock lives as long as its handler runs.

use std::time::Duration;

use campanile_core::limits::MIN_LOCK_TTL;
use campanile_core::{Outcome, State};
use campanile_idempotency::IdempotencyError;
use campanile_idempotency::policy::OnDropped;
use campanile_test::faults::{Call, Fault};
use tokio::time::{Instant, sleep};

use crate::harness::{
    HOUR, Harness, TTL, TestService, is_pending, layer_error, lock, request, run_until_idle,
};

/// The intervals between the calls with renewals.
fn renewal_intervals(start: Instant, calls: &[Call]) -> Vec<Duration> {
    let renewals = calls.iter().filter(|call| call.count("renew") > 0);
    let mut last = start;
    let interval = |call: &Call| {
        let interval = call.at - last;
        last = call.at;
        interval
    };
    renewals.map(interval).collect()
}

#[tokio::test(start_paused = true)]
async fn lock_is_renewed_at_a_third_of_its_ttl() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let start = Instant::now();
    let call = service.start(request("p-1"));
    let (request, respond) = handle.next_request().await.unwrap();
    let lock = lock(&request);
    for _ in 0..200 {
        sleep(Duration::from_secs(1)).await;
        assert!(lock.remaining() > TTL / 2, "two thirds, minus the margin and a second");
    }
    let renewal_intervals = renewal_intervals(start, &harness.store.calls());
    // Renewals may be early, because of the jitter and the batching, but never late.
    let expected = TTL / 4..=TTL / 3 + Duration::from_millis(1);
    assert!(
        renewal_intervals.iter().all(|interval| expected.contains(interval)),
        "{renewal_intervals:?}"
    );
    assert!((20..=26).contains(&renewal_intervals.len()), "{renewal_intervals:?}");

    respond.send_response("done");
    call.await.unwrap().unwrap();
    harness.store.forget_calls();
    sleep(HOUR).await;
    assert_eq!(harness.store.commands(), [], "settled locks are not renewed");
}

#[tokio::test(start_paused = true)]
async fn renewal_of_a_short_lock_is_never_late() {
    let harness = Harness::new();
    let layer = harness.layer_with(|config| config.with_lock_ttl(MIN_LOCK_TTL));
    let (service, mut handle) = harness.mock_service(layer);
    sleep(HOUR).await;
    let start = Instant::now();
    let call = service.start(request("p-1"));
    let (_request, respond) = handle.next_request().await.unwrap();
    sleep(MIN_LOCK_TTL * 20).await;
    let renewal_intervals = renewal_intervals(start, &harness.store.calls());
    assert!(renewal_intervals.len() >= 60, "{renewal_intervals:?}");
    let latest = MIN_LOCK_TTL / 3 + Duration::from_millis(1);
    assert!(renewal_intervals.iter().all(|it| *it <= latest), "{renewal_intervals:?}");
    respond.send_response("done");
    call.await.unwrap().unwrap();
}

/// A lock that is acquired after a suspension of the machine, while the keeper waits for a time that
/// it computed before.
#[tokio::test(start_paused = true)]
async fn lock_is_renewed_in_time_after_a_suspension() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let _first = service.start(request("p-1"));
    let _running = handle.next_request().await.unwrap();
    run_until_idle().await;
    harness.clock.advance(TTL / 4 - MIN_LOCK_TTL / 6);

    let short = harness.layer_with(|config| config.with_lock_ttl(MIN_LOCK_TTL));
    let (service, mut handle) = harness.mock_service(short);
    let call = service.start(request("p-2"));
    let (request, respond) = handle.next_request().await.unwrap();
    sleep(MIN_LOCK_TTL * 4).await;
    assert!(lock(&request).check().is_ok());
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
}

#[tokio::test(start_paused = true)]
async fn locks_are_renewed_in_batches() {
    const LOCKS: usize = 200;
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let mut pending = Vec::new();
    let start = Instant::now();
    for number in 0..LOCKS {
        drop(service.start(request(&format!("p-{number}"))));
        pending.push(handle.next_request().await.unwrap());
        sleep(Duration::from_millis(10)).await; // spread over two seconds
    }
    sleep(TTL * 10).await;
    let rounds = start.elapsed().as_millis() / (TTL / 3).as_millis();
    let calls = harness.store.calls();
    let renewals: Vec<_> = calls.iter().map(|call| call.count("renew")).collect();
    let (total, calls) = (renewals.iter().sum::<usize>(), renewals.iter().filter(|n| **n > 0));
    assert!(total >= LOCKS * 29, "{total} renewals");
    let for_each_round = calls.count() as f64 / rounds as f64;
    assert!(for_each_round < 8.0, "{for_each_round} calls per round for {LOCKS} locks");
}

#[tokio::test(start_paused = true)]
async fn renewal_with_lost_reply_is_repeated_and_keeps_lock() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let call = service.start(request("p-1"));
    let (request, respond) = handle.next_request().await.unwrap();
    harness.store.inject_next_of("renew", Fault::LoseReply);
    harness.store.inject_next_of("renew", Fault::LoseReply);
    sleep(TTL * 2 / 3).await;
    assert_eq!(harness.store.count("renew"), 3);
    assert!(lock(&request).remaining() > TTL / 2);
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
}

/// The store may have decided long before its reply arrived.
#[tokio::test(start_paused = true)]
async fn renewal_deadline_counts_from_before_sending() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let _call = service.start(request("p-1"));
    let (request, _respond) = handle.next_request().await.unwrap();
    harness.store.inject_next_of("renew", Fault::Slow(TTL / 10));
    while lock(&request).remaining() <= TTL * 3 / 4 || harness.store.count("renew") == 0 {
        sleep(Duration::from_millis(10)).await;
    }
    let expires = harness.entry("p-1").unwrap().at();
    let deadline = harness.clock.now() + lock(&request).remaining();
    let margin = expires.duration_since(deadline).unwrap();
    assert!((TTL / 10..TTL / 10 + Duration::from_millis(20)).contains(&margin), "{margin:?}");
}

#[tokio::test(start_paused = true)]
async fn failed_renewal_round_loses_no_lock() {
    for fault in [Fault::Refuse, Fault::LoseReply, Fault::Hang, Fault::HangReply, Fault::Panic] {
        let harness = Harness::new();
        let (service, mut handle) = harness.mock_service(harness.layer());
        let call = service.start(request("p-1"));
        let (request, respond) = handle.next_request().await.unwrap();
        harness.store.inject_next_of("renew", fault);
        sleep(TTL * 5).await;
        assert!(lock(&request).check().is_ok(), "{fault:?}");
        respond.send_response("done");
        call.await.unwrap().unwrap();
        assert_eq!(harness.entry("p-1").unwrap().attempt(), 1);
        harness.assert_settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn outage_of_half_the_ttl_loses_no_lock() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let call = service.start(request("p-1"));
    let (request, respond) = handle.next_request().await.unwrap();
    for _ in 0..5 {
        harness.store.inject_always(Fault::Hang);
        sleep(TTL / 2).await;
        harness.store.heal();
        sleep(TTL).await;
    }
    assert!(lock(&request).check().is_ok());
    respond.send_response("done");
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn hanging_commands_do_not_delay_renewals() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let call = service.start(request("p-1"));
    let (request_of_one, respond) = handle.next_request().await.unwrap();
    harness.store.inject_always_of("acquire", Fault::Hang);
    harness.store.inject_always_of("cancel", Fault::Hang);
    for number in 0..500 {
        drop(service.start(request(&format!("other-{number}"))));
    }
    sleep(TTL * 5).await;
    assert!(lock(&request_of_one).check().is_ok());
    respond.send_response("done");
    harness.store.heal();
    call.await.unwrap().unwrap();
}

/// The lock must not be revived after the completion.
#[tokio::test(start_paused = true)]
async fn completion_is_sent_after_renewal_is_answered() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    harness.store.inject_next_of("renew", Fault::HangReply);
    sleep(TTL / 3).await;
    assert_eq!(harness.store.count("renew"), 1);
    respond.send_response("done");
    assert!(is_pending(&call).await);
    assert_eq!(harness.store.count("complete"), 0);
    harness.store.release();
    call.await.unwrap().unwrap();
    run_until_idle().await;
    assert_eq!(harness.store.count("renew"), 1);
    assert_eq!(harness.state("p-1"), Some(State::Completed));
}

/// The reply must not be taken for that of another key that has reused the slot.
#[tokio::test(start_paused = true)]
async fn key_released_during_renewal_keeps_its_slot_until_answer() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer().on_dropped(OnDropped::Expire));
    let call = service.start(request("p-1"));
    let _held = handle.next_request().await.unwrap();
    harness.store.inject_next_of("renew", Fault::HangReply);
    sleep(TTL / 3).await;
    assert_eq!(harness.store.count("renew"), 1);
    call.abort();
    run_until_idle().await;

    let other = service.start(request("p-2"));
    let (request_of_other, respond) = handle.next_request().await.unwrap();
    let result = service.run("p-1").await;
    let IdempotencyError::Locked { settled: Some(settled), .. } = layer_error(&result) else {
        panic!("expected a key locked in this process");
    };
    harness.store.release();
    settled.clone().await;
    sleep(TTL * 2).await;
    assert!(lock(&request_of_other).check().is_ok());
    respond.send_response("done");
    other.await.unwrap().unwrap();
    harness.assert_settled().await;
}
