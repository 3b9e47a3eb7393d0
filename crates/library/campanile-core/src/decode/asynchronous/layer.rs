//! [`AsyncDecodeLayer`].

use std::fmt;
use std::marker::PhantomData;

use tower_layer::Layer;

use super::{AsyncDecode, AsyncDecodeService};
use crate::Record;

/// A [`DecodeLayer`](crate::DecodeLayer) with an asynchronous decoder. Created by
/// [`DecodeLayer::with_async`](crate::DecodeLayer::with_async), or from an [`AsyncDecode`].
///
/// The decoder itself caches what it fetches, such as schemas:
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::{Arc, Mutex, PoisonError};
/// use std::time::Duration;
///
/// use campanile_core::{BoxError, DecodeLayer, Record, Request, error};
/// use tower::{Service, ServiceBuilder, ServiceExt};
///
/// /// How to split a payload.
/// #[derive(Clone)]
/// struct Schema { separator: char }
///
/// #[derive(Clone, Default)]
/// struct Schemas(Arc<Mutex<HashMap<u8, Schema>>>);
///
/// impl Schemas {
///     async fn schema(&self, id: u8) -> Result<Schema, BoxError> {
///         if let Some(known) = self.lock().get(&id) {
///             return Ok(known.clone());
///         }
///         // an unavailable registry is not the record's fault
///         let later = Duration::from_secs(5);
///         let schema = fetch(id).await.map_err(|error| error::retry_after(error, later))?;
///         self.lock().insert(id, schema.clone());
///         Ok(schema)
///     }
/// #     fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u8, Schema>> {
/// #         self.0.lock().unwrap_or_else(PoisonError::into_inner)
/// #     }
/// }
/// # async fn fetch(_: u8) -> Result<Schema, std::io::Error> { Ok(Schema { separator: ';' }) }
///
/// async fn decode(record: Record, schemas: Schemas) -> Result<Vec<String>, BoxError> {
///     let payload = record.payload().ok_or("a tombstone")?;
///     let (&id, rest) = payload.split_first().ok_or("no schema's number")?;
///     let schema = schemas.schema(id).await?;
///     let text = std::str::from_utf8(rest)?;
///     Ok(text.split(schema.separator).map(str::to_owned).collect())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let schemas = Schemas::default();
/// let mut service = ServiceBuilder::new()
///     // the first record of each schema waits for the registry
///     .layer(DecodeLayer::with_async(move |record| decode(record, schemas.clone())))
///     .service_fn(async |r: Request<Vec<String>>| Ok::<_, BoxError>(r.body().len()));
///
/// let record = Record::builder("payments", 0, 7).payload(&b"\x01a;b;c"[..]).build();
/// assert_eq!(service.ready().await?.call(record).await?, 3);
/// # Ok(())
/// # }
/// ```
///
/// # Readiness
/// The inner service is polled ready first, and stays ready while the decoder waits; it must
/// therefore be `Clone`. A concurrency limit inside counts a record that waits for its schema.
#[must_use]
pub struct AsyncDecodeLayer<D, In = Record> {
    decoder: D,
    input: PhantomData<fn(In)>,
}

impl<D: AsyncDecode, In> AsyncDecodeLayer<D, In> {
    /// Creates a layer with this decoder.
    pub fn new(decoder: D) -> Self {
        Self { decoder, input: PhantomData }
    }
}

impl<S, D: Clone, In> Layer<S> for AsyncDecodeLayer<D, In> {
    type Service = AsyncDecodeService<S, D, In>;

    fn layer(&self, inner: S) -> Self::Service {
        AsyncDecodeService::new(inner, self.decoder.clone())
    }
}

impl<D: Clone, In> Clone for AsyncDecodeLayer<D, In> {
    fn clone(&self) -> Self {
        Self { decoder: self.decoder.clone(), input: PhantomData }
    }
}

impl<D, In> fmt::Debug for AsyncDecodeLayer<D, In> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncDecodeLayer<{}>", std::any::type_name::<D>())
    }
}
