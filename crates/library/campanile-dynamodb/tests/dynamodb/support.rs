//! Helpers of all tests of the store.

use std::collections::HashMap;
use std::error::Error;
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::config::interceptors::{
    BeforeDeserializationInterceptorContextMut, BeforeTransmitInterceptorContextRef,
};
use aws_sdk_dynamodb::config::{
    BehaviorVersion, Builder, Config, ConfigBag, Credentials, Intercept, Region, RuntimeComponents,
};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use campanile_core::{
    Command, FencingToken, Grant, IdempotencyKey, Namespace, Operation, Owner, Reply, Retention,
    StoreKey,
};
use campanile_dynamodb::{DynamoDbConfig, DynamoDbStore, aws_sdk_dynamodb, create_table};
use campanile_idempotency::{Store, StoreError};
use campanile_test::DynamoDbServer;

/// Longer than a machine that is busy with other tests takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A test's own table on a server that concurrent tests share.
pub(crate) struct Table {
    pub(crate) server: Arc<DynamoDbServer>,
    pub(crate) name: String,
}

impl Table {
    pub(crate) async fn new() -> Self {
        let table = Self::absent();
        create_table(table.config()).await.unwrap();
        table
    }

    /// Chooses a name without creating the table.
    pub(crate) fn absent() -> Self {
        static SHARED: Mutex<Weak<DynamoDbServer>> = Mutex::new(Weak::new());
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let mut shared = SHARED.lock().unwrap();
        let server = shared.upgrade().unwrap_or_else(|| Arc::new(DynamoDbServer::start().unwrap()));
        *shared = Arc::downgrade(&server);
        let name = format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        Self { server, name }
    }

    /// Settings with which nothing times out, and no clock is refused.
    pub(crate) fn config(&self) -> DynamoDbConfig {
        self.config_with(sdk(&self.server.url()))
    }

    pub(crate) fn config_with(&self, sdk: Builder) -> DynamoDbConfig {
        patient(DynamoDbConfig::new(sdk.build(), &self.name))
    }

    pub(crate) async fn store(&self) -> DynamoDbStore {
        DynamoDbStore::connect(self.config()).await.unwrap()
    }

    /// Reads all items, bypassing the store.
    pub(crate) async fn items(&self) -> Vec<HashMap<String, AttributeValue>> {
        let scan = self.client().scan().table_name(&self.name).consistent_read(true);
        scan.send().await.unwrap().items.unwrap_or_default()
    }

    /// Writes an item, bypassing the store.
    pub(crate) async fn put(&self, item: HashMap<String, AttributeValue>) {
        let put = self.client().put_item().table_name(&self.name).set_item(Some(item));
        put.send().await.unwrap();
    }

    pub(crate) fn client(&self) -> Client {
        let http = aws_smithy_http_client::Builder::new().build_http();
        Client::from_conf(sdk(&self.server.url()).http_client(http).build())
    }
}

pub(crate) fn patient(config: DynamoDbConfig) -> DynamoDbConfig {
    config.with_command_timeout(LONG).with_max_clock_difference(LONG)
}

/// The SDK's configuration for a local server.
pub(crate) fn sdk(url: &str) -> Builder {
    Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(url)
        .region(Region::new("eu-central-1"))
        .credentials_provider(Credentials::new("local", "local", None, None, "test"))
}

/// Records the operation of each request that is sent, and the body of one that is neither a
/// consistent read nor a conditional write.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(Arc<Mutex<Vec<String>>>);

impl Requests {
    /// The operations since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Intercept for Requests {
    fn name(&self) -> &'static str {
        "Requests"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let target = context.request().headers().get("x-amz-target").unwrap();
        let (_, operation) = target.rsplit_once('.').unwrap();
        let body = String::from_utf8_lossy(context.request().body().bytes().unwrap());
        let expected = match operation {
            "GetItem" => r#""ConsistentRead":true"#,
            _ => r#""ConditionExpression":"#,
        };
        let is_expected = body.contains(expected);
        let request =
            if is_expected { operation.to_owned() } else { format!("{operation} {body}") };
        self.0.lock().unwrap().push(request);
        Ok(())
    }
}

/// Answers the next requests as a table does that is throttled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Throttle(pub(crate) Arc<AtomicU32>);

impl Intercept for Throttle {
    fn name(&self) -> &'static str {
        "Throttle"
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        if left.is_ok() {
            *context.response_mut() = throttled()?;
        }
        Ok(())
    }
}

/// The response of a table that is throttled.
fn throttled() -> Result<HttpResponse, BoxError> {
    let body = r#"{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException","message":"slow down"}"#;
    Ok(HttpResponse::new(400.try_into()?, body.into()))
}

pub(crate) fn key(name: &str) -> StoreKey {
    let namespace = Namespace::try_from("tests").unwrap();
    StoreKey::new(namespace, &IdempotencyKey::new(name.to_owned()).unwrap())
}

pub(crate) fn grant(token: FencingToken, owner: u64) -> Grant {
    Grant { token, owner: Owner::new(owner).unwrap() }
}

pub(crate) fn acquire(owner: u64) -> Operation {
    Operation::Acquire {
        owner: Owner::new(owner).unwrap(),
        ttl: Duration::from_secs(30),
        max_attempts: 5,
        fingerprint: None,
        floor: FencingToken::ZERO,
        details: None,
    }
}

pub(crate) fn complete(grant: Grant) -> Operation {
    let reply = Some(bytes::Bytes::from_static(b"done"));
    Operation::Complete { grant, attempt: 1, fingerprint: None, reply, details: None }
}

pub(crate) fn command(key: &StoreKey, operation: Operation) -> Command {
    Command { key: key.clone(), operation, retention: Retention::default() }
}

pub(crate) async fn apply(
    store: &DynamoDbStore,
    key: &StoreKey,
    operation: Operation,
) -> Result<Reply, StoreError> {
    store.apply(command(key, operation)).await.map(|answer| answer.reply)
}

/// Acquires a key that is not locked.
pub(crate) async fn acquire_grant(store: &DynamoDbStore, key: &StoreKey, owner: u64) -> Grant {
    match apply(store, key, acquire(owner)).await.unwrap() {
        Reply::Acquired { token, .. } => grant(token, owner),
        other => panic!("not acquired: {other:?}"),
    }
}

/// The bytes of the only entry in the table.
pub(crate) async fn stored_bytes(table: &Table) -> Blob {
    let items = table.items().await;
    assert_eq!(items.len(), 1);
    items[0]["entry"].as_b().unwrap().clone()
}

/// Formats an error and all its sources in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
