//! Credentials that load slowly.

use aws_credential_types::provider::future;
use aws_sdk_dynamodb::config::{Credentials, ProvideCredentials};
use campanile_dynamodb::{DynamoDbStore, aws_sdk_dynamodb};
use campanile_idempotency::{Store, StoreErrorKind};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use crate::support::{Table, acquire, acquire_grant, apply, chain, key, sdk};

/// How long a load of credentials takes, and when they expire.
type Load = (Duration, Option<SystemTime>);

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
}

impl ProvideCredentials for SlowCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        let (duration, expires) = self.0.lock().unwrap().pop_front().expect("one more load");
        future::ProvideCredentials::new(async move {
            tokio::time::sleep(duration).await;
            Ok(Credentials::new("local", "local", None, expires, "test"))
        })
    }
}

#[tokio::test]
async fn credentials_slower_than_a_request_are_loaded_once() {
    let table = Table::new().await;
    // `connect` sends four requests of at most 2.5 s.
    let slow = SlowCredentials::new([(Duration::from_secs(3), None)]);
    let sdk = sdk(&table.server.url()).credentials_provider(slow.clone());
    let config = table.config_with(sdk).with_command_timeout(Duration::from_secs(9));
    let store = DynamoDbStore::connect(config).await.unwrap();
    acquire_grant(&store, &key("a"), 1).await;
    acquire_grant(&store.for_renewals(), &key("b"), 1).await;
    assert_eq!(slow.loads_left(), 0);
}

#[tokio::test]
async fn credentials_slower_than_a_command_fail_it_and_are_loaded_once() {
    let table = Table::new().await;
    let expired = (Duration::ZERO, Some(SystemTime::UNIX_EPOCH));
    let slow = SlowCredentials::new([expired, (Duration::from_secs(2), None)]);
    let sdk = sdk(&table.server.url()).credentials_provider(slow.clone());
    let config = table.config_with(sdk).with_command_timeout(Duration::from_secs(1));
    let store = DynamoDbStore::connect(config).await.unwrap();
    let error = apply(&store, &key("a"), acquire(1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout, "{}", chain(&error));
    while let Err(error) = apply(&store, &key("a"), acquire(1)).await {
        assert_eq!(error.kind(), StoreErrorKind::Timeout, "{}", chain(&error));
    }
    assert_eq!(slow.loads_left(), 0);
}
