//! The table itself, and access to it.

use aws_sdk_dynamodb::config::{BehaviorVersion, Config, Region};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
    TimeToLiveStatus,
};
use campanile_dynamodb::{DynamoDbStore, aws_sdk_dynamodb, create_table};
use campanile_idempotency::StoreErrorKind;
use std::time::Duration;

use crate::support::{Table, acquire_grant, chain, key};

#[tokio::test]
async fn missing_table_error_says_what_to_run() {
    let table = Table::absent();
    let error = DynamoDbStore::connect(table.config()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let text = chain(&error);
    assert!(
        text.contains(&format!("the DynamoDB table `{}` does not exist", table.name)),
        "{text}"
    );
    assert!(text.contains("`campanile_dynamodb::create_table`"), "{text}");
}

#[tokio::test]
async fn table_is_created_once_with_expiry() {
    let table = Table::absent();
    let create = || create_table(table.config());
    let (first, second) = tokio::join!(create(), create());
    first.unwrap();
    second.unwrap();
    acquire_grant(&table.store().await, &key("key"), 1).await;
    create().await.unwrap();
    assert_eq!(table.items().await.len(), 1);
    let expiry = table.client().describe_time_to_live().table_name(&table.name);
    let expiry = expiry.send().await.unwrap().time_to_live_description.unwrap();
    assert_eq!(expiry.attribute_name(), Some("expires_at"));
    assert_eq!(expiry.time_to_live_status(), Some(&TimeToLiveStatus::Enabled));
}

#[tokio::test]
async fn table_that_cannot_be_created_is_reported_with_advice() {
    let table = Table { name: "with spaces".to_owned(), ..Table::absent() };
    let error = create_table(table.config()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(chain(&error).contains("check the table's name"), "{}", chain(&error));
}

#[tokio::test]
async fn table_with_another_key_is_refused() {
    let table = Table::absent();
    let key = KeySchemaElement::builder().attribute_name("pk").key_type(KeyType::Hash);
    let pk = AttributeDefinition::builder().attribute_name("pk");
    let create = table.client().create_table().table_name(&table.name);
    let create = create.key_schema(key.build().unwrap()).billing_mode(BillingMode::PayPerRequest);
    let pk = pk.attribute_type(ScalarAttributeType::S).build().unwrap();
    create.attribute_definitions(pk).send().await.unwrap();
    let error = DynamoDbStore::connect(table.config()).await.unwrap_err();
    assert!(chain(&error).contains("needs the partition key `id`"), "{}", chain(&error));
}

#[tokio::test]
async fn missing_credentials_or_region_is_reported_with_advice() {
    let table = Table::new().await;
    let base = || Config::builder().behavior_version(BehaviorVersion::latest());
    let no_credentials = base().endpoint_url(table.server.url()).region(Region::new("eu-west-1"));
    for sdk in [no_credentials, base()] {
        let error = DynamoDbStore::connect(table.config_with(sdk)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(chain(&error).contains("has a region and valid credentials"), "{}", chain(&error));
    }
}

#[tokio::test]
async fn setting_out_of_bounds_is_refused() {
    let config = Table::absent().config().with_command_timeout(Duration::ZERO);
    let error = DynamoDbStore::connect(config).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    assert!(chain(&error).contains("`command_timeout`"), "{}", chain(&error));
}
