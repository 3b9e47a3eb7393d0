//! The creation of the table.

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::client::Waiters;
use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
    TimeToLiveSpecification, TimeToLiveStatus,
};
use campanile_core::BoxError;
use campanile_idempotency::StoreError;

use crate::DynamoDbConfig;
use crate::error::store_error;
use crate::table::{EXPIRES_AT, ID};

/// Time limit for a new table to become active.
const ACTIVE_TIMEOUT: Duration = Duration::from_secs(120);

/// Creates the table if it does not exist, waits until it is active, and enables its time to live. An
/// existing table keeps its other settings. Several processes may do so at once.
///
/// The table has on-demand capacity, the partition key `id` of type S, no sort key, and the time to live
/// in the attribute `expires_at`. Tools such as CloudFormation or Terraform can create the same table.
///
/// # Errors
/// Fails if DynamoDB cannot be reached or denies access, if the table is not active within 2 min, or if it
/// cannot have a time to live, as a [global table with strong consistency](crate#replication).
pub async fn create_table(config: DynamoDbConfig) -> Result<(), StoreError> {
    let config = config.for_setup();
    let (client, table) = (config.client(), &*config.table);
    create(&client, table).await?;
    let active = client.wait_until_table_exists().table_name(table).wait(ACTIVE_TIMEOUT);
    active.await.map_err(StoreError::unavailable)?;
    enable_expiry(&client, table).await
}

async fn create(client: &Client, table: &str) -> Result<(), StoreError> {
    let key = KeySchemaElement::builder().attribute_name(ID).key_type(KeyType::Hash);
    let id = AttributeDefinition::builder();
    let id = id.attribute_name(ID).attribute_type(ScalarAttributeType::S);
    let created = client
        .create_table()
        .table_name(table)
        .key_schema(key.build().map_err(invalid)?)
        .attribute_definitions(id.build().map_err(invalid)?)
        .billing_mode(BillingMode::PayPerRequest)
        .send()
        .await;
    match created {
        Err(error)
            if !matches!(
                error.as_service_error(),
                Some(CreateTableError::ResourceInUseException(_))
            ) =>
        {
            Err(store_error(error, table))
        }
        // The table exists.
        _ => Ok(()),
    }
}

async fn enable_expiry(client: &Client, table: &str) -> Result<(), StoreError> {
    let expiry = TimeToLiveSpecification::builder().attribute_name(EXPIRES_AT).enabled(true);
    let expiry = expiry.build().map_err(invalid)?;
    let enable = client.update_time_to_live().table_name(table).time_to_live_specification(expiry);
    let Err(refusal) = enable.send().await else {
        return Ok(());
    };
    // It may have been enabled before, or by another process.
    let current = client.describe_time_to_live().table_name(table).send().await;
    let current = current.ok().and_then(|current| current.time_to_live_description);
    match current.and_then(|ttl| ttl.time_to_live_status) {
        Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling) => Ok(()),
        _ => Err(store_error(refusal, table)),
    }
}

fn invalid(error: impl Into<BoxError>) -> StoreError {
    StoreError::misconfigured(error)
}
