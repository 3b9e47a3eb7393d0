//! Clocks that differ.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextMut;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_smithy_async::time::{SystemTimeSource, TimeSource};
use campanile_core::Reply;
use campanile_dynamodb::{DynamoDbStore, aws_sdk_dynamodb};
use campanile_idempotency::{StoreError, StoreErrorKind};

use crate::support::{Table, Throttle, acquire, acquire_grant, apply, chain, complete, key, sdk};

/// A clock that is ahead of the system's.
#[derive(Debug)]
pub(crate) struct Ahead(pub(crate) Duration);

impl TimeSource for Ahead {
    fn now(&self) -> SystemTime {
        SystemTimeSource::new().now() + self.0
    }
}

/// A clock that is behind the system's.
#[derive(Debug)]
struct Behind(Duration);

impl TimeSource for Behind {
    fn now(&self) -> SystemTime {
        SystemTimeSource::new().now() - self.0
    }
}

/// A clock that is ahead of the system's by a number of seconds that changes.
#[derive(Clone, Debug, Default)]
struct Jumping(Arc<AtomicU64>);

impl TimeSource for Jumping {
    fn now(&self) -> SystemTime {
        SystemTimeSource::new().now() + Duration::from_secs(self.0.load(Ordering::Relaxed))
    }
}

/// Lets the clock jump before the response to a request arrives.
#[derive(Clone, Debug, Default)]
struct JumpInFlight {
    clock: Jumping,
    is_armed: Arc<AtomicBool>,
}

impl Intercept for JumpInFlight {
    fn name(&self) -> &'static str {
        "JumpInFlight"
    }

    fn modify_before_deserialization(
        &self,
        _: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if self.is_armed.swap(false, Ordering::Relaxed) {
            self.clock.0.store(HOUR.as_secs(), Ordering::Relaxed);
        }
        Ok(())
    }
}

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn wrong_clock_is_refused_before_anything_is_written() {
    let table = Table::new().await;
    let url = table.server.url();
    let sdks = [
        (sdk(&url).time_source(Ahead(HOUR)), "ahead of DynamoDB's"),
        (sdk(&url).time_source(Behind(HOUR)), "behind DynamoDB's"),
    ];
    for (sdk, text) in sdks {
        let config = table.config_with(sdk);
        let error = DynamoDbStore::connect(config).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(chain(&error).contains(text), "{}", chain(&error));
        assert!(chain(&error).contains("synchronize the machine's clock"), "{}", chain(&error));
    }
}

#[tokio::test]
async fn clock_that_jumps_fails_commands_and_writes_nothing() {
    let table = Table::new().await;
    let clock = Jumping::default();
    let sdk = sdk(&table.server.url()).time_source(clock.clone());
    let store = DynamoDbStore::connect(table.config_with(sdk)).await.unwrap();
    let key = key("key");
    let grant = acquire_grant(&store, &key, 1).await;
    let before = table.items().await;
    clock.0.store(HOUR.as_secs(), Ordering::Relaxed);
    let error = apply(&store, &key, acquire(2)).await.unwrap_err();
    assert!(chain(&error).contains("ahead of DynamoDB's"), "{}", chain(&error));
    assert_eq!(table.items().await, before);
    clock.0.store(0, Ordering::Relaxed);
    assert_eq!(apply(&store, &key, complete(grant)).await.unwrap(), Reply::Completed);
}

/// Acquires a lock that is held, while the clock jumps. The read is sent again as often as it is
/// `throttled`.
async fn acquire_during_jump(throttled: u32) -> Result<Reply, StoreError> {
    let table = Table::new().await;
    let (jump, throttle) = (JumpInFlight::default(), Throttle::default());
    let sdk = sdk(&table.server.url()).time_source(jump.clock.clone());
    let sdk = sdk.interceptor(jump.clone()).interceptor(throttle.clone());
    let store = DynamoDbStore::connect(table.config_with(sdk)).await.unwrap();
    let key = key("key");
    acquire_grant(&table.store().await, &key, 1).await;
    let before = table.items().await;
    jump.is_armed.store(true, Ordering::Relaxed);
    throttle.0.store(throttled, Ordering::Relaxed);
    let answer = apply(&store, &key, acquire(2)).await;
    assert_eq!(table.items().await, before);
    answer
}

#[tokio::test]
async fn clock_that_jumps_before_a_retry_takes_no_lock() {
    let error = acquire_during_jump(1).await.unwrap_err();
    assert!(chain(&error).contains("ahead of DynamoDB's"), "{}", chain(&error));
}

#[tokio::test]
async fn clock_that_jumps_before_the_response_takes_no_lock() {
    let reply = acquire_during_jump(0).await.unwrap();
    assert!(matches!(reply, Reply::Locked { .. }), "{reply:?}");
}

#[tokio::test]
async fn lock_is_taken_early_by_the_difference_and_its_token_rises() {
    let table = Table::new().await;
    let store = table.store().await;
    let key = key("key");
    // A lock of 30 s.
    let first = acquire_grant(&store, &key, 1).await;
    let ahead = |seconds| {
        let ahead = Duration::from_secs(seconds);
        let config = table.config_with(sdk(&table.server.url()).time_source(Ahead(ahead)));
        DynamoDbStore::connect(config.with_max_clock_difference(HOUR))
    };
    let reply = apply(&ahead(0).await.unwrap(), &key, acquire(2)).await.unwrap();
    assert!(matches!(reply, Reply::Locked { .. }), "{reply:?}");
    let second = acquire_grant(&ahead(30).await.unwrap(), &key, 2).await;
    assert!(second.token > first.token);
    assert_eq!(apply(&store, &key, complete(first)).await.unwrap(), Reply::Lost);
    assert_eq!(apply(&store, &key, complete(second)).await.unwrap(), Reply::Completed);
}
