//! Handlers with a bug, which the kit finds within 1 000 situations.

use std::collections::HashSet;
use std::error::Error;
use std::sync::{Arc, Mutex};

use campanile_core::{BoxError, Request};
use campanile_idempotency::policy::OnLost;
use campanile_test::torture::{Failure, Report, point, torture};

use crate::shop::{Shop, layer, record, stack, torture_handler};

/// Asserts how a failure is told.
#[track_caller]
fn assert_story(result: Result<Report, Failure>, story: &str) {
    let failure = result.unwrap_err();
    assert_eq!(failure.story, story);
    assert!(failure.report.situations < 1_000, "{failure}");
}

#[test]
fn charge_without_key_is_repeated() {
    async fn charge(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        shop.charge(request.body(), None).await;
        shop.upsert(request.body(), None).await;
        Ok(())
    }
    assert_story(
        torture_handler(charge, |effects| effects.check_charges()),
        "dropped at await 2 of attempt 1 (charged), then delivered again: \
         2 charges of p-1, expected 1",
    );
}

#[test]
fn insert_of_existing_row_fails_every_attempt() {
    async fn book(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        shop.insert(request.body()).await
    }
    assert_story(
        torture_handler(book, |effects| effects.check_rows()),
        "dropped at await 2 of attempt 1 (inserted), then delivered again 7 times, then given up: \
         attempt 8 of 8 failed: duplicate key p-1",
    );
}

#[test]
fn counter_is_incremented_twice() {
    async fn count(shop: Shop, _: Request<String>) -> Result<(), BoxError> {
        shop.add(5).await;
        Ok(())
    }
    assert_story(
        torture_handler(count, |effects| effects.check_balance()),
        "dropped at await 2 of attempt 1 (added), then delivered again: \
         the balance is 10, expected 5",
    );
}

#[test]
fn mail_before_commit_is_sent_twice() {
    async fn order(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        shop.send_mail(request.body()).await;
        shop.upsert(request.body(), None).await;
        Ok(())
    }
    assert_story(
        torture_handler(order, |effects| effects.check_mails()),
        "dropped at await 2 of attempt 1 (mail sent), then delivered again: \
         2 mails of p-1, expected 1",
    );
}

#[test]
fn spawned_charge_outlives_its_handler() {
    async fn charge(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        let payment = request.body().clone();
        let charge = {
            let shop = shop.clone();
            tokio::spawn(async move { shop.charge(&payment, None).await })
        };
        shop.upsert(request.body(), None).await;
        Ok(charge.await?)
    }
    assert_story(
        torture_handler(charge, |effects| effects.check_charges()),
        "dropped at await 1 of attempt 1 (upsert requested), then delivered again: \
         2 charges of p-1, expected 1",
    );
}

#[test]
fn spawned_charge_is_lost_with_its_process() {
    async fn charge(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        let key = request.lock().unwrap().derive("charge")?;
        tokio::spawn(async move { shop.charge(request.body(), Some(key)).await });
        Ok(())
    }
    assert_story(
        torture_handler(charge, |effects| effects.check_charges()),
        "killed after the handler of attempt 1, then delivered again: 0 charges of p-1, expected 1",
    );
}

#[test]
fn processed_keys_in_memory_are_lost_with_their_process() {
    #[derive(Clone, Default)]
    struct Seen(Arc<Mutex<HashSet<String>>>);

    let result = torture(
        async || Shop::default(),
        async |shop, keeper| {
            let seen = Seen::default();
            let charge = move |shop: Shop, request: Request<String>| {
                if seen.0.lock().unwrap().insert(request.body().clone()) {
                    shop.effects().entries.push(request.body().clone());
                }
                async {
                    point("appended").await;
                    Ok(())
                }
            };
            Ok(stack(layer(keeper)?, shop, charge))
        },
        async |shop: Shop| shop.effects().check_entries(),
    );
    assert_story(
        result.run([record("p-1")]),
        "killed at await 1 of attempt 1 (appended), then delivered again: \
         2 entries of p-1, expected 1",
    );
}

#[test]
fn effect_without_await_is_repeated_after_an_outage() {
    async fn append(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        shop.effects().entries.push(request.body().clone());
        Ok(())
    }
    assert_story(
        torture_handler(append, |effects| effects.check_entries()),
        "without the store before the handler of attempt 1, then killed, then delivered again: \
         2 entries of p-1, expected 1",
    );
}

/// Tortures a handler that charges without a key if it has no lock, because the call of the store has failed
/// with this error.
fn torture_fail_open(error: &'static str) -> Result<Report, Failure> {
    async fn charge(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        let key = request.lock().ok().map(|lock| lock.derive("charge")).transpose()?;
        shop.charge(request.body(), key).await;
        Ok(())
    }
    let torture = torture(
        async || Shop::default(),
        async |shop, keeper| {
            let layer = layer(keeper)?.with_fail_open_risking_duplicates(move |_, failed| {
                failed.source().is_some_and(|source| source.to_string() == error)
            });
            Ok(stack(layer, shop, charge))
        },
        async |shop: Shop| match shop.effects().charges_without_key() {
            0 => Ok(()),
            charges => Err(format!("{charges} charges have no key")),
        },
    );
    torture.run([record("p-1")])
}

#[test]
fn run_without_lock_has_no_derived_key() {
    assert_story(
        torture_fail_open("refused"),
        "refused by the store in `acquire` of attempt 1: 1 charges have no key",
    );
    assert_story(
        torture_fail_open("reply lost"),
        "without the reply to `acquire` of attempt 1: 1 charges have no key",
    );
}

#[test]
fn read_before_write_races_with_the_next_owner() {
    async fn append(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        let lock = request.lock().unwrap();
        if !shop.has_entry(request.body()).await {
            lock.check()?;
            shop.append(request.body()).await;
        }
        Ok(())
    }
    assert_story(
        torture_handler(append, |effects| effects.check_entries()),
        "without its lock at await 2 of attempt 1 (read), then delivered again, \
         then attempt 1 continued: 2 entries of p-1, expected 1",
    );
}

#[test]
fn handler_that_is_told_of_its_lost_lock_must_heed_it() {
    async fn append(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        if !shop.has_entry(request.body()).await {
            shop.append(request.body()).await;
        }
        Ok(())
    }
    let result = torture(
        async || Shop::default(),
        async |shop, keeper| Ok(stack(layer(keeper)?.on_lost(OnLost::Notify), shop, append)),
        async |shop: Shop| shop.effects().check_entries(),
    );
    assert_story(
        result.run([record("p-1")]),
        "suspended at await 2 of attempt 1 (read), then delivered again, \
         then attempt 1 continued: 2 entries of p-1, expected 1",
    );
}
