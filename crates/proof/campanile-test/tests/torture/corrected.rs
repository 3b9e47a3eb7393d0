//! The corrected forms of the handlers with a bug pass all situations.

use std::sync::Arc;

use campanile_core::{BoxError, Request};
use campanile_test::torture::{Failure, Report, torture};

use crate::shop::{Shop, layer, record, stack, torture_handler};

/// Asserts that nothing failed, at each of these awaits of the handler.
#[track_caller]
fn assert_passed(result: Result<Report, Failure>, awaits: usize) {
    let report = result.unwrap();
    assert_eq!(report.awaits, awaits);
    assert!(report.situations > 200, "{report}");
}

#[test]
fn charge_with_derived_key_is_made_once() {
    async fn charge(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        let key = request.lock().unwrap().derive("charge")?;
        shop.charge(request.body(), Some(key)).await;
        shop.upsert(request.body(), None).await;
        Ok(())
    }
    assert_passed(torture_handler(charge, |effects| effects.check_charges()), 4);
}

#[test]
fn upsert_is_made_once() {
    async fn book(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        shop.upsert(request.body(), None).await;
        Ok(())
    }
    assert_passed(torture_handler(book, |effects| effects.check_rows()), 2);
}

#[test]
fn sum_of_rows_counts_each_payment_once() {
    async fn count(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        shop.upsert(request.body(), None).await;
        Ok(())
    }
    assert_passed(torture_handler(count, |effects| effects.check_sum()), 2);
}

#[test]
fn mail_in_the_same_commit_is_sent_once() {
    async fn order(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        shop.upsert(request.body(), Some(request.body())).await;
        Ok(())
    }
    assert_passed(torture_handler(order, |effects| effects.check_mails()), 2);
}

#[test]
fn spawned_charge_with_lock_and_key_is_made_once() {
    async fn charge(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        let (lock, payment) = (request.lock().unwrap().clone(), request.body().clone());
        let charge = {
            let shop = shop.clone();
            tokio::spawn(async move {
                let key = lock.derive("charge")?;
                lock.check()?;
                shop.charge(&payment, Some(key)).await;
                Ok::<_, BoxError>(())
            })
        };
        shop.upsert(request.body(), None).await;
        // the record is not completed before its charge
        charge.await?
    }
    assert_passed(torture_handler(charge, |effects| effects.check_charges()), 3);
}

#[test]
fn row_lock_of_suspended_handler_delays_the_next_owner() {
    let torture = torture(
        async || (Shop::default(), Arc::new(tokio::sync::Mutex::new(()))),
        async |(shop, row), keeper| {
            let book = move |shop: Shop, request: Request<String>| {
                let row = row.clone();
                async move {
                    let _locked = row.lock().await;
                    shop.upsert(request.body(), None).await;
                    Ok(())
                }
            };
            Ok(stack(layer(keeper)?, shop, book))
        },
        async |(shop, _): (Shop, _)| shop.effects().check_rows(),
    );
    assert_passed(torture.run([record("p-1")]), 2);
}
