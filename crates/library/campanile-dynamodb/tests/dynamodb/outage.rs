//! A server that is gone or hangs, and replies that are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::config::interceptors::BeforeTransmitInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use campanile_core::Reply;
use campanile_dynamodb::{DynamoDbConfig, DynamoDbStore, aws_sdk_dynamodb, create_table};
use campanile_idempotency::{Store, StoreErrorKind};
use campanile_test::{DynamoDbServer, Proxy};

use crate::support::{
    LONG, Requests, Table, Throttle, acquire, acquire_grant, apply, chain, complete, grant, key,
    patient, sdk,
};

/// Loses the reply to the first request for this operation.
#[derive(Clone, Debug)]
struct LoseReply {
    proxy: Arc<Proxy>,
    operation: &'static str,
    is_armed: Arc<AtomicBool>,
}

impl Intercept for LoseReply {
    fn name(&self) -> &'static str {
        "LoseReply"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let target = context.request().headers().get("x-amz-target").unwrap();
        if target.ends_with(self.operation) && self.is_armed.swap(false, Ordering::Relaxed) {
            self.proxy.swallow_replies();
        }
        Ok(())
    }
}

#[tokio::test]
async fn lost_reply_causes_no_error_and_counts_once() {
    for (operation, expected) in [
        ("GetItem", &["GetItem", "GetItem", "PutItem"][..]),
        // The condition of the second write fails, the read finds what the first one wrote, and the
        // repeated acquire extends the lock.
        ("PutItem", &["GetItem", "PutItem", "PutItem", "GetItem", "PutItem"]),
    ] {
        let table = Table::new().await;
        let proxy = Arc::new(Proxy::to(table.server.addr()).unwrap());
        let is_armed = Arc::new(AtomicBool::new(false));
        let lose = LoseReply { proxy: proxy.clone(), operation, is_armed: is_armed.clone() };
        let requests = Requests::default();
        let sdk = sdk(&table.server.url_through(proxy.addr()));
        let sdk = sdk.interceptor(lose).interceptor(requests.clone());
        let store = DynamoDbStore::connect(table.config_with(sdk)).await.unwrap();
        requests.take();
        is_armed.store(true, Ordering::Relaxed);
        let breaking = async {
            while proxy.swallowed() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // Closes the connection that has lost bytes.
            proxy.heal().unwrap();
        };
        let key = key("key");
        let (reply, ()) = tokio::join!(apply(&store, &key, acquire(1)), breaking);
        let Reply::Acquired { attempt: 1, token, .. } = reply.unwrap() else { panic!() };
        assert_eq!(requests.take(), expected);
        let held = grant(token, 1);
        assert_eq!(apply(&store, &key, complete(held)).await.unwrap(), Reply::Completed);
    }
}

#[tokio::test]
async fn throttled_request_is_repeated_then_reported_with_advice() {
    let table = Table::new().await;
    let (throttle, requests) = (Throttle::default(), Requests::default());
    let sdk = sdk(&table.server.url()).interceptor(throttle.clone()).interceptor(requests.clone());
    let store = DynamoDbStore::connect(table.config_with(sdk)).await.unwrap();
    requests.take();
    let key = key("key");
    throttle.0.store(3, Ordering::Relaxed);
    let held = acquire_grant(&store, &key, 1).await;
    assert_eq!(requests.take(), ["GetItem", "GetItem", "GetItem", "GetItem", "PutItem"]);
    throttle.0.store(u32::MAX, Ordering::Relaxed);
    let error = apply(&store, &key, complete(held)).await.unwrap_err();
    assert_eq!(requests.take(), ["GetItem"; 4]);
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(chain(&error).contains("is throttled; use its on-demand mode"), "{}", chain(&error));
    throttle.0.store(0, Ordering::Relaxed);
    assert_eq!(apply(&store, &key, complete(held)).await.unwrap(), Reply::Completed);
}

#[tokio::test]
async fn command_without_an_answer_times_out_and_can_be_repeated() {
    let table = Table::new().await;
    let proxy = Proxy::to(table.server.addr()).unwrap();
    let url = table.server.url_through(proxy.addr());
    let config = table.config_with(sdk(&url)).with_command_timeout(Duration::from_millis(400));
    let patient_store = DynamoDbStore::connect(table.config_with(sdk(&url))).await.unwrap();
    let key = key("key");
    let store = loop {
        match DynamoDbStore::connect(config.clone()).await {
            Ok(store) => break store,
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Timeout, "{error:?}"),
        }
    };
    assert_eq!(store.max_call_duration(), Some(Duration::from_millis(400)));
    proxy.swallow_replies();
    let error = apply(&store, &key, acquire(1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout, "{}", chain(&error));
    proxy.heal().unwrap();
    acquire_grant(&patient_store, &key, 1).await;
}

#[tokio::test]
async fn server_outage_fails_calls_with_its_reason() {
    let mut server = DynamoDbServer::start().unwrap();
    let config = DynamoDbConfig::new(sdk(&server.url()).build(), "outage");
    let config = patient(config);
    create_table(config.clone()).await.unwrap();
    let store = DynamoDbStore::connect(config.clone()).await.unwrap();
    let key = key("key");
    acquire_grant(&store, &key, 1).await;
    server.kill().unwrap();
    let error = apply(&store, &key, acquire(1)).await.unwrap_err();
    // Not a timeout: the time limit of this store is a minute.
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{}", chain(&error));
    assert!(chain(&error).contains("DynamoDB cannot be reached"), "{}", chain(&error));
    server.restart().unwrap();
    create_table(config).await.unwrap();
    acquire_grant(&store, &key, 1).await;
}

#[tokio::test]
async fn hung_server_times_out_the_call() {
    let mut server = DynamoDbServer::start().unwrap();
    let config = DynamoDbConfig::new(sdk(&server.url()).build(), "hung");
    create_table(patient(config.clone())).await.unwrap();
    server.pause().unwrap();
    let config = config.with_command_timeout(Duration::from_millis(400));
    let connecting = tokio::time::timeout(LONG, DynamoDbStore::connect(config.clone()));
    let error = connecting.await.expect("in time").unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout, "{}", chain(&error));
    server.resume().unwrap();
    DynamoDbStore::connect(patient(config)).await.unwrap();
}
