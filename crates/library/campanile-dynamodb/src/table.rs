//! Items of the table: consistent reads and conditional writes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use campanile_core::{Entry, StoreKey};
use campanile_idempotency::{EntryStore, StoreError};

use crate::DynamoDbConfig;
use crate::clock::{self, LastExchange};
use crate::error::store_error;

/// The partition key: the namespace, a slash, and the digest in hexadecimal digits.
pub(crate) const ID: &str = "id";

/// The bytes of the entry.
const ENTRY: &str = "entry";

/// When the entry expires, in whole seconds since 1970, rounded up. DynamoDB deletes the item some time
/// later.
pub(crate) const EXPIRES_AT: &str = "expires_at";

/// An identifier that no entry has.
const NO_ENTRY: &str = "none";

/// The table with the entries.
#[derive(Clone)]
pub(crate) struct Table(Arc<Inner>);

struct Inner {
    client: Client,
    config: DynamoDbConfig,
}

type Item = HashMap<String, AttributeValue>;

impl Table {
    /// Creates a handle with connections of its own.
    pub(crate) fn new(config: DynamoDbConfig) -> Self {
        Self(Arc::new(Inner { client: config.client(), config }))
    }

    /// Checks that the table can be read, and the clock.
    pub(crate) async fn check(&self) -> Result<(), StoreError> {
        self.get(NO_ENTRY.to_owned()).await.map(|_| ())
    }

    /// Reads the newest version of an item, and the time of the response.
    ///
    /// The futures of the SDK take several KB, and are therefore boxed.
    async fn get(&self, id: String) -> Result<(Option<Item>, SystemTime), StoreError> {
        let Inner { client, config } = &*self.0;
        let last = LastExchange::default();
        let request = client.get_item().table_name(&*config.table).consistent_read(true);
        let request = request.key(ID, AttributeValue::S(id)).customize().interceptor(last.clone());
        let output =
            Box::pin(request.send()).await.map_err(|error| store_error(error, &config.table))?;
        let exchange =
            last.get().ok_or_else(|| StoreError::unavailable("the SDK has sent no request"))?;
        let now = exchange.now();
        if let Some(date) = exchange.date {
            let checked = clock::check(exchange.sent, date, now, config.max_clock_difference);
            checked.map_err(StoreError::unavailable)?;
        }
        Ok((output.item, now))
    }
}

/// A version of an item that was read.
pub(crate) struct Version {
    /// The bytes of the stored item, also of one that has expired. They contain the nonce of the last
    /// grant and its time, so that equal bytes are the same entry.
    bytes: Option<Blob>,
    read_at: SystemTime,
}

impl EntryStore for Table {
    type Version = Version;

    async fn load(
        &self,
        key: &StoreKey,
    ) -> Result<(Option<Entry>, Self::Version, SystemTime), StoreError> {
        let (item, now) = self.get(id(key)).await?;
        let version = |bytes| Version { bytes, read_at: now };
        let Some(item) = item else {
            return Ok((None, version(None), now));
        };
        let (bytes, expires_at) = parse(item)
            .ok_or_else(|| StoreError::unreadable("the item has no attributes of an entry"))?;
        // Absent, whatever it contains.
        if expires_at <= now.duration_since(UNIX_EPOCH).unwrap_or_default() {
            return Ok((None, version(Some(bytes)), now));
        }
        let entry = Entry::from_bytes(bytes.as_ref()).map_err(StoreError::unreadable)?;
        Ok((Some(entry), version(Some(bytes)), now))
    }

    /// The credentials are loaded separately, too: a load belongs to the runtime that started it.
    fn for_renewals(&self) -> Self {
        Self::new(self.0.config.clone().with_own_cache())
    }

    async fn swap(
        &self,
        key: &StoreKey,
        version: Self::Version,
        entry: Entry,
        retention: Duration,
    ) -> Result<bool, StoreError> {
        let Inner { client, config } = &*self.0;
        let expires_at = expires_at(version.read_at, retention);
        let put = client
            .put_item()
            .table_name(&*config.table)
            .item(ID, AttributeValue::S(id(key)))
            .item(ENTRY, AttributeValue::B(Blob::new(entry.to_bytes())))
            .item(EXPIRES_AT, AttributeValue::N(expires_at.to_string()));
        let put = match version.bytes {
            None => put
                .condition_expression("attribute_not_exists(#id)")
                .expression_attribute_names("#id", ID),
            Some(before) => put
                .condition_expression("#entry = :before")
                .expression_attribute_names("#entry", ENTRY)
                .expression_attribute_values(":before", AttributeValue::B(before)),
        };
        match Box::pin(put.send()).await {
            Ok(_) => Ok(true),
            // Also if the SDK has sent the request again and the first one was applied: the next `load`
            // then finds this entry, and the repeated command gets the same reply.
            Err(SdkError::ServiceError(error))
                if matches!(error.err(), PutItemError::ConditionalCheckFailedException(_)) =>
            {
                Ok(false)
            }
            Err(error) => Err(store_error(error, &config.table)),
        }
    }
}

fn id(key: &StoreKey) -> String {
    format!("{}/{}", key.namespace(), key.digest_hex())
}

/// The entry's bytes, and when it expires, since 1970.
fn parse(mut item: Item) -> Option<(Blob, Duration)> {
    let AttributeValue::N(expires_at) = item.remove(EXPIRES_AT)? else { return None };
    let AttributeValue::B(bytes) = item.remove(ENTRY)? else { return None };
    Some((bytes, Duration::from_secs(expires_at.parse().ok()?)))
}

fn expires_at(now: SystemTime, retention: Duration) -> u64 {
    let at = now.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_add(retention);
    at.as_secs().saturating_add(u64::from(at.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_is_rounded_up_to_seconds() {
        let now = UNIX_EPOCH + Duration::from_millis(1_500);
        let expires_at = |millis| expires_at(now, Duration::from_millis(millis));
        assert_eq!([499, 500, 501, 1_500].map(expires_at), [2, 2, 3, 3]);
        assert_eq!(super::expires_at(now, Duration::MAX), u64::MAX);
    }
}
