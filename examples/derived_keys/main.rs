//! A payment provider is called again after each fault, and charges each payment once:
//! `cargo run --example derived_keys`.
//!
//! Handlers are killed before and after their call. The provider refuses calls, and is killed before
//! and after it has stored a charge. It recognizes the `Idempotency-Key` of a call that it has
//! stored. The first run sends the key that is derived from the event's key, and the second run, with
//! the same faults, a new key with each call. `--seed N` repeats a run.
//!
//! The modules to copy are `charge` and `client`.

mod charge;
mod client;
mod faults;
mod provider;

use std::net::Ipv4Addr;
use std::time::Duration;

use campanile::key::DerivationSecret;
use campanile::prelude::*;
use campanile::{Backoff, IdempotencyConfig, Request, WaitForLock, handler};
use lexopt::{Arg, ValueExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tower::{Service, ServiceBuilder, ServiceExt};

use crate::charge::{App, Keys, Payment, charge};
use crate::client::ProviderClient;
use crate::faults::{Faults, Process};
use crate::provider::Provider;

const PAYMENTS: u32 = 500;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let faults = Faults::new(seed_from_args()?.unwrap_or_else(|| fastrand::u64(..)));
    println!("seed {}", faults.seed());
    println!("                   calls  handlers killed  charged once  charged more often");
    let derived = run(faults, Keys::Derived).await?;
    derived.print("derived keys");
    let random = run(faults, Keys::Random).await?;
    random.print("a key per call");
    assert_eq!((derived.once, derived.more_often), (PAYMENTS as usize, 0));
    assert_eq!(random.once + random.more_often, PAYMENTS as usize);
    assert!(random.more_often > 0, "no fault has met a charge that was stored");
    assert_eq!((derived.calls, derived.killed), (random.calls, random.killed));
    Ok(())
}

/// What happened in a run.
struct Totals {
    calls: u32,
    killed: u32,
    once: usize,
    more_often: usize,
}

impl Totals {
    fn print(&self, name: &str) {
        let Self { calls, killed, once, more_often } = self;
        println!("{name:<16}{calls:>8}{killed:>17}{once:>14}{more_often:>20}");
    }
}

/// Delivers each payment twice, all of them concurrently, until each delivery is answered.
async fn run(faults: Faults, keys: Keys) -> Result<Totals, BoxError> {
    let provider = Provider::new(faults);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let client = ProviderClient::new(listener.local_addr()?)?;
    tokio::spawn(axum::serve(listener, provider.router()).into_future());

    let service = stack(App { client, keys, faults })?;
    let mut deliveries = JoinSet::new();
    for number in (0..PAYMENTS).chain(0..PAYMENTS) {
        let payment = Payment { id: format!("p-{number}"), cents: 100 + u64::from(number) };
        deliveries.spawn(deliver(service.clone(), payment));
    }
    let mut killed = 0;
    while let Some(delivery) = deliveries.join_next().await {
        killed += delivery??;
    }
    let charges = provider.charges();
    let once = charges.values().filter(|&&charges| charges == 1).count();
    Ok(Totals { calls: provider.calls(), killed, once, more_often: charges.len() - once })
}

/// The stack around the handler.
fn stack(
    app: App,
) -> Result<
    impl Service<Request<Payment>, Response = Outcome<()>, Error = BoxError, Future: Send> + Clone,
    BoxError,
> {
    // in a service: from where it keeps its passwords
    let secret = DerivationSecret::new("only-an-example-never-use-this-text")?;
    let config = IdempotencyConfig::new("billing.payments")
        .with_derivation_secret(secret)
        // short, so that the example ends soon
        .with_backoff(Backoff::new(Duration::from_millis(1), Duration::from_millis(10))?)
        // there are many faults
        .with_max_attempts(1_000);
    Ok(ServiceBuilder::new()
        // in place of the consumer: waits for locks and backoffs, and tries failed payments again
        .retry(WaitForLock::new(Duration::from_secs(60)).retrying_failures())
        // one lock for each payment
        .layer(IdempotencyLayer::new(MemoryStore::new(), config, key::field(|p: &Payment| &p.id))?)
        // a call without an answer fails its attempt
        .timeout(Duration::from_secs(10))
        .service(handler(app, charge)))
}

/// Delivers a payment, again if its handler is killed. Returns how often it was killed.
async fn deliver<S>(mut service: S, payment: Payment) -> Result<u32, BoxError>
where
    S: Service<Request<Payment>, Response = Outcome<()>, Error = BoxError>,
{
    let record = Record::builder("payments", 0, 0).build();
    let mut killed = 0;
    loop {
        let process = Process::default();
        let mut request = Request::new(record.clone(), payment.clone());
        request.extensions_mut().insert(process.clone());
        tokio::select! {
            outcome = service.ready().await?.call(request) => return outcome.map(|_| killed),
            // drops the handler at the point that it has reached
            () = process.killed() => killed += 1,
        }
    }
}

fn seed_from_args() -> Result<Option<u64>, BoxError> {
    let mut seed = None;
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("seed") => seed = Some(parser.value()?.parse()?),
            arg => return Err(format!("{}\nusage: [--seed N]", arg.unexpected()).into()),
        }
    }
    Ok(seed)
}
