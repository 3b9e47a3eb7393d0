//! Keys that handlers derive for their own calls.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::key::DerivationSecret;
use campanile_core::{BoxError, LockHandle, Request, key};
use campanile_idempotency::{Backoff, WaitForLock};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

use crate::harness::{HOUR, Harness, TTL, TestService, lock, request};

const PAYMENTS: usize = 2_000;

#[tokio::test(start_paused = true)]
async fn derived_key_is_the_same_in_each_attempt_and_process() {
    let mut harness = Harness::new();
    let other_process = harness.other_process();
    let secret = DerivationSecret::new([7; 32]).unwrap();
    let layer = |harness: &Harness| {
        harness.layer_with(|config| config.with_derivation_secret(secret.clone()))
    };
    let (here, mut handle) = harness.mock_service(layer(&harness));
    let (there, mut other_handle) = other_process.mock_service(layer(&other_process));

    let call = here.start(request("p-1"));
    let (first, respond) = handle.next_request().await.unwrap();
    let first = lock(&first);
    respond.send_error("gateway busy");
    call.await.unwrap().unwrap_err();
    sleep(HOUR).await;
    let _call = here.start(request("p-1"));
    let (second, _respond) = handle.next_request().await.unwrap();
    let second = lock(&second);
    harness.crash().await;
    sleep(TTL * 2).await;
    let _call = there.start(request("p-1"));
    let (third, _respond) = other_handle.next_request().await.unwrap();
    let third = lock(&third);

    assert_eq!([first.attempt(), second.attempt(), third.attempt()], [1, 2, 3]);
    let derive = |lock: &LockHandle| lock.derive("charge").unwrap();
    let expected = key::derive(Some(&secret), first.namespace(), first.key(), "charge").unwrap();
    assert_eq!([&first, &second, &third].map(derive), [(); 3].map(|()| expected.clone()));
    // The handle of an attempt that has ended derives the same key, and still says that it is lost.
    assert!(first.check().is_err());
    assert_ne!(first.derive("receipt").unwrap(), expected);
    assert!(first.derive("").is_err());
}

#[tokio::test(start_paused = true)]
async fn derived_key_depends_on_the_secret_of_the_layer() {
    let harness = Harness::new();
    let secrets = [None, Some([7; 32]), Some([8; 32])];
    let mut keys = HashSet::new();
    for (number, secret) in secrets.iter().enumerate() {
        let layer = harness.layer_with(|config| match secret {
            Some(secret) => config.with_derivation_secret(DerivationSecret::new(secret).unwrap()),
            None => config,
        });
        let (service, mut handle) = harness.mock_service(layer);
        let _call = service.start(request(&format!("p-{number}")));
        let (held, _respond) = handle.next_request().await.unwrap();
        let held = lock(&held);
        let same_key = key::derive(
            secret.map(|secret| DerivationSecret::new(secret).unwrap()).as_ref(),
            held.namespace(),
            held.key(),
            "charge",
        );
        assert_eq!(held.derive("charge").unwrap(), same_key.unwrap());
        keys.insert(key::derive(None, held.namespace(), held.key(), "charge").unwrap());
        keys.insert(held.derive("charge").unwrap());
    }
    // Without a secret, the key is the public one.
    assert_eq!(keys.len(), 2 * secrets.len() - 1);
}

/// The crashes are at random points of many handlers, before, during and after their calls.
#[tokio::test(start_paused = true)]
async fn receiver_of_derived_keys_acts_once_in_each_crash() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let with_derived_keys = pay(seed, |lock| lock.derive("charge").unwrap()).await;
    assert_eq!(with_derived_keys.counts(), HashMap::from([(1, PAYMENTS)]), "charges: payments");
    assert!(with_derived_keys.calls > PAYMENTS, "no call was repeated");
    // The same with a key for each call, so that the test is able to fail.
    let with_random_keys = pay(seed, |_| format!("{:016x}", fastrand::u64(..))).await;
    let twice: usize =
        with_random_keys.counts().iter().filter(|(n, _)| **n > 1).map(|(_, p)| p).sum();
    println!("{twice} of {PAYMENTS} payments are charged more than once without derived keys");
    assert!(twice > 0);
    assert_eq!(with_random_keys.charges.len(), PAYMENTS);
}

/// A payment provider, which recognizes the keys of its calls. It keeps its data.
#[derive(Default)]
struct Provider {
    calls: usize,
    keys: HashSet<String>,
    /// The number of charges of each payment.
    charges: HashMap<String, usize>,
}

impl Provider {
    fn charge(&mut self, key: String, payment: String) {
        self.calls += 1;
        if self.keys.insert(key) {
            *self.charges.entry(payment).or_default() += 1;
        }
    }

    /// The number of payments for each number of charges.
    fn counts(&self) -> HashMap<usize, usize> {
        let mut counts = HashMap::new();
        self.charges.values().for_each(|charges| *counts.entry(*charges).or_default() += 1);
        counts
    }
}

/// Processes the payments, each delivered twice, in processes that crash one after the other. The
/// provider refuses some calls, and some of its responses are lost.
async fn pay(seed: u64, idempotency_key: fn(&LockHandle) -> String) -> Provider {
    const CRASHES: usize = 20;
    fastrand::seed(seed);
    let provider = Arc::new(Mutex::new(Provider::default()));
    let mut process = Harness::new();
    let mut processes = Vec::new();
    for _ in 0..CRASHES {
        let deliveries = deliver(&process, &provider, idempotency_key);
        sleep(millis(100..2_000)).await;
        process.crash().await;
        drop(deliveries);
        let next = process.other_process();
        processes.push(std::mem::replace(&mut process, next));
    }
    let outcomes = deliver(&process, &provider, idempotency_key).join_all().await;
    assert!(outcomes.iter().all(|&is_ok| is_ok), "a payment was given up");
    process.assert_settled().await;
    drop(processes);
    Arc::into_inner(provider).unwrap().into_inner().unwrap()
}

fn deliver(
    process: &Harness,
    provider: &Arc<Mutex<Provider>>,
    idempotency_key: fn(&LockHandle) -> String,
) -> JoinSet<bool> {
    let layer = process.layer_with(|config| {
        let backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(100)).unwrap();
        let config = config.with_lock_ttl(Duration::from_secs(2)).with_max_hold(HOUR);
        config.with_backoff(backoff).with_max_attempts(1_000)
    });
    let provider = provider.clone();
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(HOUR).retrying_failures())
        .layer(layer)
        .service(service_fn(move |request: Request<()>| {
            call_provider(provider.clone(), request, idempotency_key)
        }));
    let ids = (0..PAYMENTS).chain(0..PAYMENTS).map(|number| request(&format!("p-{number}")));
    ids.map(|request| {
        let mut service = service.clone();
        async move {
            // Spreads the deliveries over the lives of the processes.
            sleep(millis(0..3_000)).await;
            service.ready().await.unwrap().call(request).await.is_ok()
        }
    })
    .collect()
}

/// The handler. A crash may interrupt it at each `await`.
async fn call_provider(
    provider: Arc<Mutex<Provider>>,
    request: Request<()>,
    idempotency_key: fn(&LockHandle) -> String,
) -> Result<(), BoxError> {
    let lock = lock(&request);
    let payment = lock.key().to_text().into_owned();
    let key = idempotency_key(&lock);
    sleep(millis(0..100)).await;
    lock.check()?;
    if fastrand::u8(0..10) == 0 {
        return Err("the provider refuses the call".into());
    }
    provider.lock().unwrap().charge(key, payment);
    sleep(millis(0..100)).await;
    if fastrand::u8(0..10) == 0 {
        return Err("the response is lost".into());
    }
    Ok(())
}

fn millis(range: Range<u64>) -> Duration {
    Duration::from_millis(fastrand::u64(range))
}
