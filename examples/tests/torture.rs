//! A test that stops a handler at each of its awaits: `cargo test -p campanile-examples --test torture`.
//!
//! The handler charges a payment at a provider, and books it in the database. In your program, it and its
//! stack are in the program's crate, and the test replaces the clients by fakes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use campanile::lock::IntoKeeper;
use campanile::prelude::*;
use campanile::{Request, handler};
use campanile_test::torture::{Failure, Report, point, torture};
use serde::Deserialize;
use tower::{Service, ServiceBuilder};

#[derive(Deserialize)]
struct Payment {
    id: String,
    cents: u64,
}

/// The state of the handler.
#[derive(Clone)]
struct App {
    world: World,
    has_keys: bool,
}

async fn charge(app: App, request: Request<Payment>) -> Result<(), BoxError> {
    let lock = request.lock()?;
    // the same in each attempt, so that the provider recognizes a repeated call
    let key = if app.has_keys { lock.derive("charge")? } else { format!("{}", lock.token()) };
    app.world.charge(key, request.body().cents).await;
    app.world.book(&request.body().id).await;
    Ok(())
}

/// The stack of the program and of its tests.
fn stack(
    store: impl IntoKeeper,
    app: App,
) -> Result<impl Service<Record, Response = Outcome<()>, Error = BoxError> + Clone, BoxError> {
    Ok(ServiceBuilder::new()
        // a record that does not decode never acquires a lock
        .layer(DecodeLayer::json())
        // one lock for each payment
        .layer(IdempotencyLayer::new(store, "billing.payments", key::field(|p: &Payment| &p.id))?)
        .service(handler(app, charge)))
}

/// What survives a crash: fakes of the provider, which charges once for each key, and of the database.
#[derive(Clone, Default)]
struct World(Arc<Mutex<Tables>>);

#[derive(Default)]
struct Tables {
    charges: BTreeMap<String, u64>,
    booked: BTreeSet<String>,
}

impl World {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn charge(&self, key: String, cents: u64) {
        // a call can fail before its effect, and after it
        point("charge requested").await;
        self.tables().charges.insert(key, cents);
        point("charged").await;
    }

    async fn book(&self, payment: &str) {
        point("booking requested").await;
        self.tables().booked.insert(payment.to_owned());
        point("booked").await;
    }

    /// Checks what must hold after each situation.
    fn check(&self) -> Result<(), String> {
        let tables = self.tables();
        match (tables.charges.values().sum(), tables.booked.len()) {
            (300, 2) => Ok(()),
            (cents, booked) => Err(format!("{cents} cents charged and {booked} payments booked")),
        }
    }
}

fn torture_charge(has_keys: bool) -> Result<Report, Failure> {
    let payments = [r#"{"id":"p-1","cents":100}"#, r#"{"id":"p-2","cents":200}"#];
    let records = (0..).zip(payments);
    torture(
        async || World::default(),
        async |world, keeper| stack(keeper, App { world, has_keys }),
        async |world: World| world.check(),
    )
    .run(records.map(|(offset, body)| Record::builder("payments", 0, offset).payload(body).build()))
}

#[test]
fn payments_are_charged_once_whatever_crashes() -> Result<(), Failure> {
    let report = torture_charge(true)?;
    println!("{report}");
    // of both payments: the points before and after each effect
    assert_eq!(report.awaits, 8);
    Ok(())
}

#[test]
fn new_key_in_each_attempt_is_found() {
    let failure = torture_charge(false).expect_err("the second attempt charges again");
    println!("{failure}");
    assert_eq!(
        failure.story,
        "record 1 of 2 dropped at await 2 of attempt 1 (charged), then delivered again: \
         400 cents charged and 2 payments booked"
    );
}
