//! [`DecodeLayer`] and its constructors.

use std::fmt;
use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use tower_layer::Layer;

use super::{AsyncDecodeLayer, Decode, DecodeService, Json, Raw, RawBytes, Tombstones};
use crate::{BoxError, Record};

/// Turns a [`Record`] (or a [`Request`](crate::Request)) into a request with a decoded body.
///
/// The input type is inferred from the position in the stack.
///
/// ```
/// use campanile_core::{BoxError, DecodeLayer, Record, Request};
/// use tower::{Service, ServiceBuilder, ServiceExt};
///
/// #[derive(serde::Deserialize)]
/// struct Payment { cents: u64 }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let mut service = ServiceBuilder::new()
///     // `{"cents":100}` becomes a `Payment`; invalid records fail here
///     .layer(DecodeLayer::json())
///     .service_fn(async |r: Request<Payment>| Ok::<_, BoxError>(r.body().cents));
///
/// let record = Record::builder("payments", 0, 7).payload(r#"{"cents":100}"#).build();
/// assert_eq!(service.ready().await?.call(record).await?, 100);
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct DecodeLayer<D, In = Record> {
    decoder: D,
    input: PhantomData<fn(In)>,
}

impl<In> DecodeLayer<(), In> {
    /// Decodes JSON with serde. A null payload is an error.
    pub fn json<T: DeserializeOwned>() -> DecodeLayer<Json<T>, In> {
        DecodeLayer::new(Json::new())
    }

    /// Uses the bytes of the payload as the body. A null payload is an error.
    pub fn bytes() -> DecodeLayer<RawBytes, In> {
        DecodeLayer::new(RawBytes)
    }

    /// Uses the payload as the body, with `None` for null. Never fails. For stacks with a decoder
    /// inside the idempotency layer.
    pub fn raw() -> DecodeLayer<Raw, In> {
        DecodeLayer::new(Raw)
    }

    /// Decodes with a closure over the record.
    pub fn with<F, T, E>(decoder: F) -> DecodeLayer<F, In>
    where
        F: Fn(&Record) -> Result<T, E>,
        E: Into<BoxError>,
    {
        DecodeLayer::new(decoder)
    }

    /// Decodes with an asynchronous closure over the record, which may wait for a schema, for
    /// example. See [`AsyncDecodeLayer`].
    pub fn with_async<F, Fut, T, E>(decoder: F) -> AsyncDecodeLayer<F, In>
    where
        F: Fn(Record) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: Into<BoxError>,
    {
        AsyncDecodeLayer::new(decoder)
    }
}

impl<D: Decode, In> DecodeLayer<D, In> {
    /// Decodes with a custom decoder.
    pub fn new(decoder: D) -> Self {
        Self { decoder, input: PhantomData }
    }

    /// Turns the body into an `Option` that is `None` for a null payload.
    pub fn or_tombstone(self) -> DecodeLayer<Tombstones<D>, In> {
        DecodeLayer::new(Tombstones(self.decoder))
    }
}

impl<S, D: Clone, In> Layer<S> for DecodeLayer<D, In> {
    type Service = DecodeService<S, D, In>;

    fn layer(&self, inner: S) -> Self::Service {
        DecodeService::new(inner, self.decoder.clone())
    }
}

impl<D: Clone, In> Clone for DecodeLayer<D, In> {
    fn clone(&self) -> Self {
        Self { decoder: self.decoder.clone(), input: PhantomData }
    }
}

impl<D, In> fmt::Debug for DecodeLayer<D, In> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DecodeLayer<{}>", std::any::type_name::<D>())
    }
}
