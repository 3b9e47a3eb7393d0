//! The route and its handler.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::error_handling::HandleErrorLayer;
use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use campanile::policy::OnExhausted;
use campanile::prelude::{BoxError, IdempotencyConfig, IdempotencyLayer, LockHandle, key};
use campanile::{Disposition, LockKeeper, classify};
use serde::Deserialize;
use serde_json::json;
use tower::ServiceBuilder;

use crate::answer::{AnswerCodec, ErrorResponse, error_response, into_response, reject_errors};
use crate::terminal::Terminal;

/// The maximum size of a request body and of a kept response.
pub(crate) const MAX_BODY: usize = 64 * 1024;

/// Creates the route `POST /payments`. Its layers are listed from the outermost to the innermost.
pub(crate) fn payments(keeper: LockKeeper, terminal: Terminal) -> Result<Router, BoxError> {
    // If there are accounts, make the caller's part of the key: `key::from_fn(account).and(..)`.
    // Otherwise a client that guesses a key gets another account's response.
    let by_header = key::from_fn(|request: &Request<Bytes>| {
        Some(request.headers().get("idempotency-key")?.as_bytes().to_vec())
    });
    let by_header_and_body =
        by_header.fingerprint_by(|request: &Request<Bytes>, parts| parts.update(request.body()));
    let idempotency = IdempotencyLayer::new(
        keeper,
        IdempotencyConfig::new("payments").with_max_reply_bytes(MAX_BODY),
        by_header_and_body,
    )?
    // a repeated request gets the first response
    .with_reply(AnswerCodec)
    // a client error frees the key at once and hands its attempt back, but not forever; a
    // server error is a failed attempt
    .with_classifier(classify::on(|ErrorResponse(answer): &ErrorResponse| {
        if answer.status().is_client_error() {
            Disposition::Release
        } else {
            Disposition::Retry { after: None }
        }
    }))
    // nothing collects dead letters here
    .on_exhausted(OnExhausted::GiveUp);

    let layers = ServiceBuilder::new()
        // a client that disconnects does not interrupt a payment
        .layer(from_fn(spawn_request))
        // the response to an error
        .layer(HandleErrorLayer::new(error_response))
        // the response of this run, or of the first
        .map_response(into_response)
        // the fingerprint covers the whole body
        .filter_async(buffer_body)
        // one lock for each key, renewed while the handler runs; keeps the response
        .layer(idempotency)
        // a slow handler fails its attempt
        .timeout(Duration::from_secs(10))
        // a request that was not carried out is an error: as a response it would be kept for good
        .and_then(reject_errors)
        .map_request(|request: Request<Bytes>| request.map(Body::from));
    Ok(Router::new().route("/payments", post(charge).route_layer(layers)).with_state(terminal))
}

/// Runs the request in a task, because the server drops the handler when its client disconnects.
///
/// Without this layer, a client that disconnects costs a failed attempt. `OnDropped::Release`
/// hands such an attempt back, for handlers that may be interrupted at any point. To wait for these
/// tasks at a shutdown, keep them in a `TaskTracker` of tokio-util.
async fn spawn_request(request: Request, next: Next) -> Response {
    let task = tokio::spawn(next.run(request));
    // A panic of the handler does not get here: the layer turns it into an error.
    task.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// Buffers the body.
async fn buffer_body(request: Request) -> Result<Request<Bytes>, BoxError> {
    let (head, body) = request.into_parts();
    Ok(Request::from_parts(head, to_bytes(body, MAX_BODY).await?))
}

#[derive(Deserialize)]
struct Payment {
    cents: u64,
}

/// The handler: charges a payment. The lock is an extension of the request.
async fn charge(
    State(terminal): State<Terminal>,
    Extension(lock): Extension<LockHandle>,
    Json(Payment { cents }): Json<Payment>,
) -> Result<impl IntoResponse, (StatusCode, &'static str)> {
    let permit = terminal.begin_payment(cents).await;
    let permit = permit.ok_or((StatusCode::BAD_GATEWAY, "the terminal does not answer"))?;
    lock.check().map_err(|_| (StatusCode::SERVICE_UNAVAILABLE, "the payment took too long"))?;
    // The charge is the last step, as it should be in every handler.
    match permit.charge(cents) {
        Some(receipt) => Ok((StatusCode::CREATED, Json(json!({ "receipt": receipt })))),
        None => Err((StatusCode::PAYMENT_REQUIRED, "the card is declined")),
    }
}
