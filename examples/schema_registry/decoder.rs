//! A decoder for Avro messages in Confluent's wire format: a zero byte, the id of the writer's
//! schema in four bytes, and the Avro datum.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use campanile::bytes::Bytes;
use campanile::http::{StatusCode, Uri};
use campanile::{BoxError, Record, error};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

/// The time limit of one request to the registry.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a record waits before the registry is asked again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The size limit of the registry's response.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;

/// Decodes messages with the schemas of a registry. Each schema is kept, because an id's schema
/// never changes. Clones share the schemas and the connections.
#[derive(Clone)]
pub(crate) struct AvroDecoder {
    /// Without TLS; for `https`, use the connector of hyper-rustls.
    client: Client<HttpConnector, Empty<Bytes>>,
    /// Such as `http://registry:8081`.
    registry: Arc<str>,
    schemas: Arc<Mutex<HashMap<u32, Arc<Schema>>>>,
}

impl AvroDecoder {
    /// Creates a decoder with the registry at this URL.
    pub(crate) fn new(registry: &str) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            registry: registry.into(),
            schemas: Arc::default(),
        }
    }

    /// Decodes a record's payload.
    ///
    /// # Errors
    /// Fails permanently if the payload is not Avro in the wire format, or has an unknown schema.
    /// Asks for a retry if the registry is unavailable.
    pub(crate) async fn decode<T: DeserializeOwned>(self, record: Record) -> Result<T, BoxError> {
        let payload = record.payload().ok_or("the payload is null")?;
        let Some((&[0, a, b, c, d], mut datum)) = payload.split_first_chunk() else {
            return Err("the payload does not start with a zero byte and the id of a schema".into());
        };
        let schema = self.schema(u32::from_be_bytes([a, b, c, d])).await?;
        let body = GenericDatumReader::builder(&schema).build()?.read_deser(&mut datum)?;
        match datum {
            [] => Ok(body),
            rest => Err(format!("{} bytes follow the Avro datum", rest.len()).into()),
        }
    }

    async fn schema(&self, id: u32) -> Result<Arc<Schema>, BoxError> {
        if let Some(schema) = self.schemas().get(&id) {
            return Ok(schema.clone());
        }
        let fetched = timeout(REQUEST_TIMEOUT, self.fetch(id)).await;
        let fetched = fetched.unwrap_or_else(|elapsed| Err(elapsed.into()));
        // The registry is the problem, and not the record.
        let text = fetched.map_err(|error| error::retry_after(error, RETRY_AFTER))?;
        // No attempt would find it later, because a producer registers the schema before it writes.
        let text = text.ok_or_else(|| format!("the registry has no schema {id}"))?;
        let schema = Arc::new(Schema::parse_str(&text)?);
        self.schemas().insert(id, schema.clone());
        Ok(schema)
    }

    /// Fetches the schema with this id, if the registry has it.
    async fn fetch(&self, id: u32) -> Result<Option<String>, BoxError> {
        #[derive(Deserialize)]
        struct Registered {
            schema: String,
        }
        let uri: Uri = format!("{}/schemas/ids/{id}", self.registry).parse()?;
        let response = self.client.get(uri).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await?;
        match status {
            StatusCode::OK => {
                let Registered { schema } = serde_json::from_slice(&body.to_bytes())?;
                Ok(Some(schema))
            }
            StatusCode::NOT_FOUND => Ok(None),
            status => Err(format!("the registry answered {status}").into()),
        }
    }

    fn schemas(&self) -> MutexGuard<'_, HashMap<u32, Arc<Schema>>> {
        self.schemas.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
