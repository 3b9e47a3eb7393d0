//! Credentials that load slowly, or not at all.

use aws_credential_types::provider::{self, error::CredentialsError, future};
use aws_sdk_dynamodb::config::{Builder, Credentials, IdentityCache, ProvideCredentials};
use campanile_core::{Operation, Reply};
use campanile_dynamodb::{DynamoDbConfig, DynamoDbStore, aws_sdk_dynamodb, create_table};
use campanile_idempotency::{Store, StoreErrorKind};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};
use tokio::runtime;

use crate::support::{LONG, Table, acquire, acquire_grant, apply, chain, key, sdk};

/// Nothing listens there.
const NO_SERVER: &str = "http://127.0.0.1:9";

/// How long a load of credentials takes, and its result.
type Load = (Duration, provider::Result);

/// Credentials with the loads that are expected.
#[derive(Clone, Debug)]
struct SlowCredentials(Arc<Mutex<VecDeque<Load>>>);

impl SlowCredentials {
    fn new(loads: impl Into<VecDeque<Load>>) -> Self {
        Self(Arc::new(Mutex::new(loads.into())))
    }

    fn loads_left(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// A configuration with a cache of the SDK, as `aws-config` returns it.
    fn sdk(&self, url: &str) -> Builder {
        let sdk = sdk(url).credentials_provider(self.clone());
        sdk.identity_cache(IdentityCache::lazy().build())
    }

    /// Default settings, for a time without requests to a server.
    fn without_server(&self) -> DynamoDbConfig {
        DynamoDbConfig::new(self.sdk(NO_SERVER).build(), "none")
    }
}

impl ProvideCredentials for SlowCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        let (duration, result) = self.0.lock().unwrap().pop_front().expect("one more load");
        future::ProvideCredentials::new(async move {
            tokio::time::sleep(duration).await;
            result
        })
    }
}

fn valid(expires: Option<SystemTime>) -> provider::Result {
    Ok(Credentials::new("local", "local", None, expires, "test"))
}

/// Credentials that are loaded again for the next request.
fn expired() -> Load {
    (Duration::ZERO, valid(Some(SystemTime::UNIX_EPOCH)))
}

fn refused() -> provider::Result {
    Err(CredentialsError::provider_error("the role is refused"))
}

/// Lets this time pass at once, in which nothing may wait for the network.
async fn skip(time: Duration) {
    tokio::time::pause();
    tokio::time::sleep(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn credentials_slower_than_a_request_are_loaded_once() {
    const SLOW: Duration = Duration::from_secs(6);
    let table = Table::new().await;
    let slow = SlowCredentials::new([(SLOW, valid(None))]);
    let config = DynamoDbConfig::new(slow.sdk(&table.server.url()).build(), &table.name);
    let config = config.with_max_clock_difference(LONG);
    let (store, ()) = tokio::join!(DynamoDbStore::connect(config), skip(SLOW));
    let store = store.unwrap();
    while let Err(error) = apply(&store, &key("a"), acquire(1)).await {
        assert_eq!(error.kind(), StoreErrorKind::Timeout, "{}", chain(&error));
    }
    assert_eq!(slow.loads_left(), 0);
}

#[tokio::test]
async fn table_is_created_with_credentials_slower_than_a_command() {
    const SLOW: Duration = Duration::from_secs(6);
    let table = Table::absent();
    let slow = SlowCredentials::new([(SLOW, valid(None))]);
    let config = DynamoDbConfig::new(slow.sdk(&table.server.url()).build(), &table.name);
    let (created, ()) = tokio::join!(create_table(config), skip(SLOW));
    created.unwrap();
    assert_eq!(slow.loads_left(), 0);
}

#[tokio::test]
async fn credentials_slower_than_a_command_fail_it_and_are_loaded_once() {
    let table = Table::new().await;
    let slow = SlowCredentials::new([expired(), (Duration::from_secs(2), valid(None))]);
    let config = table.config_with(slow.sdk(&table.server.url()));
    let config = config.with_command_timeout(Duration::from_secs(1));
    let store = DynamoDbStore::connect(config).await.unwrap();
    let error = apply(&store, &key("a"), acquire(1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout, "{}", chain(&error));
    while let Err(error) = apply(&store, &key("a"), acquire(1)).await {
        assert_eq!(error.kind(), StoreErrorKind::Timeout, "{}", chain(&error));
    }
    assert_eq!(slow.loads_left(), 0);
}

#[tokio::test(start_paused = true)]
async fn credentials_that_fail_slowly_are_reported_with_the_reason() {
    // Two requests have timed out by then.
    let slow = SlowCredentials::new([(Duration::from_secs(6), refused())]);
    let error = DynamoDbStore::connect(slow.without_server()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(chain(&error).contains("the role is refused"), "{}", chain(&error));
}

#[tokio::test(start_paused = true)]
async fn load_of_credentials_after_one_that_hung_has_its_full_time() {
    const HUNG: Duration = Duration::from_secs(3600);
    let slow = SlowCredentials::new([(HUNG, refused()), (Duration::from_secs(9), refused())]);
    let config = slow.without_server();
    let error = DynamoDbStore::connect(config.clone()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout, "{}", chain(&error));
    // The load ends at the same time.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let error = DynamoDbStore::connect(config).await.unwrap_err();
    assert!(chain(&error).contains("the role is refused"), "{}", chain(&error));
}

#[test]
fn load_of_credentials_ends_with_its_runtime() {
    let slow = SlowCredentials::new([(LONG, refused()), (Duration::ZERO, refused())]);
    let config = slow.without_server();
    let runtime = || runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime().block_on(async {
        let connecting = DynamoDbStore::connect(config.clone());
        tokio::time::timeout(Duration::from_millis(1), connecting).await.unwrap_err();
    });
    assert_eq!(slow.loads_left(), 1);
    let error = runtime().block_on(DynamoDbStore::connect(config)).unwrap_err();
    assert!(chain(&error).contains("the role is refused"), "{}", chain(&error));
}

#[tokio::test]
async fn renewals_wait_for_no_credentials_of_a_blocked_runtime() {
    let table = Table::new().await;
    // `connect`, the read and the write of the grant, a load that hangs, and that of the renewals.
    let (hung, own) = ((LONG, valid(None)), (Duration::ZERO, valid(None)));
    let slow = SlowCredentials::new([expired(), expired(), expired(), hung, own]);
    let config = table.config_with(slow.sdk(&table.server.url()));
    let store = DynamoDbStore::connect(config).await.unwrap();
    let key = key("key");
    let grant = acquire_grant(&store, &key, 1).await;
    let keeper = store.for_renewals();
    tokio::spawn({
        let key = key.clone();
        async move { apply(&store, &key, acquire(2)).await }
    });
    while slow.loads_left() > 1 {
        tokio::task::yield_now().await;
    }
    let renewal = thread::spawn(move || {
        let renew = Operation::Renew { grant, ttl: Duration::from_secs(60) };
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(apply(&keeper, &key, renew)).unwrap()
    });
    // Blocks this test's runtime, and therefore its load.
    assert_eq!(renewal.join().unwrap(), Reply::Renewed);
    assert_eq!(slow.loads_left(), 0);
}
