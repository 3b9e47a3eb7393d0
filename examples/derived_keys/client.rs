//! The client of the provider.

use std::net::SocketAddr;

use campanile::BoxError;
use campanile::bytes::Bytes;
use campanile::http::{Request, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::charge::Payment;

/// Calls the provider. Clones share their connections.
#[derive(Clone)]
pub(crate) struct ProviderClient {
    /// Without TLS; for `https`, use the connector of hyper-rustls.
    client: Client<HttpConnector, Full<Bytes>>,
    charges: Uri,
}

impl ProviderClient {
    pub(crate) fn new(provider: SocketAddr) -> Result<Self, BoxError> {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(Self { client, charges: format!("http://{provider}/charges").parse()? })
    }

    /// Charges a payment, once for each key.
    ///
    /// # Errors
    /// Fails if the provider does not say that the payment is charged. It may be charged nevertheless.
    pub(crate) async fn charge(&self, key: &str, payment: &Payment) -> Result<(), BoxError> {
        let request = Request::post(&self.charges)
            .header("idempotency-key", key)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(serde_json::to_vec(payment)?))?;
        let response = self.client.request(request).await?;
        let status = response.status();
        // The connection can be used again once the body is read.
        response.into_body().collect().await?;
        if status.is_success() {
            Ok(())
        } else {
            Err(format!("the provider answered {status}").into())
        }
    }
}
