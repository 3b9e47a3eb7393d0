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
use campanile::policy::OnGivenUp;
use campanile::prelude::{BoxError, IdempotencyLayer, Lock, key};
use campanile::store::BoxStore;
use campanile::{Disposition, classify};
use serde::Deserialize;
use serde_json::json;
use tower::ServiceBuilder;

use crate::answer::{KeptAnswer, NotDone, answer, done, refuse};
use crate::terminal::Terminal;

/// The largest body of a request, and the largest answer that is kept.
pub(crate) const MAX_BODY: usize = 64 * 1024;

/// The route: all that comes to a `POST /payments`, from outside in.
pub(crate) fn payments(store: BoxStore, terminal: Terminal) -> Result<Router, BoxError> {
    // With accounts, begin with the caller's, `key::from_fn(account).and(..)`: or whoever guesses a
    // key gets the answer of somebody else.
    let by_header = key::from_fn(|request: &Request<Bytes>| {
        Some(request.headers().get("idempotency-key")?.as_bytes().to_vec())
    });
    let by_header_and_body =
        by_header.fingerprint_by(|request: &Request<Bytes>, parts| parts.update(request.body()));
    let idempotency = IdempotencyLayer::new(store, "payments", by_header_and_body)?
        // a repeat gets the first answer
        .with_reply(KeptAnswer)
        .with_max_reply_bytes(MAX_BODY)
        // a client's error frees the key at once, and its attempt is handed back, but not for ever;
        // a server's error is a failed attempt
        .with_classifier(classify::on(|NotDone(answer): &NotDone| {
            if answer.status().is_client_error() {
                Disposition::Release
            } else {
                Disposition::Retry { after: None }
            }
        }))
        // nobody collects dead letters here
        .with_given_up(OnGivenUp::Reject);

    let once = ServiceBuilder::new()
        // a client that leaves does not interrupt a payment
        .layer(from_fn(in_a_task))
        // the answer where there is no outcome
        .layer(HandleErrorLayer::new(refuse))
        // the answer of this run, or of the first
        .map_response(answer)
        // the fingerprint is of the whole body
        .filter_async(read)
        // one lock for each key, renewed while the handler runs, and its answer kept
        .layer(idempotency)
        // a slow handler fails its attempt
        .timeout(Duration::from_secs(10))
        // what was not carried out is an error: as an answer it would be kept for good
        .and_then(done)
        .map_request(|request: Request<Bytes>| request.map(Body::from));
    Ok(Router::new().route("/payments", post(charge).route_layer(once)).with_state(terminal))
}

/// The server drops the handler of a client that has gone; what runs in a task goes on.
///
/// Without this a client that leaves costs a failed attempt, which `OnAbandoned::Release` hands back:
/// for handlers that may be cut off at any line. A shutdown that should wait for such tasks keeps them
/// in a `TaskTracker` of tokio-util.
async fn in_a_task(request: Request, next: Next) -> Response {
    let task = tokio::spawn(next.run(request));
    // It does not fail by a panic of the handler, which the layer makes an error of.
    task.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// Buffers the body.
async fn read(request: Request) -> Result<Request<Bytes>, BoxError> {
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
    Extension(lock): Extension<Lock>,
    Json(Payment { cents }): Json<Payment>,
) -> Result<impl IntoResponse, (StatusCode, &'static str)> {
    let turn = terminal.take(cents).await;
    let turn = turn.ok_or((StatusCode::BAD_GATEWAY, "the terminal does not answer"))?;
    lock.check().map_err(|_| (StatusCode::SERVICE_UNAVAILABLE, "it took too long"))?;
    // The charge is the last step, as in every handler.
    match turn.charge(cents) {
        Some(receipt) => Ok((StatusCode::CREATED, Json(json!({ "receipt": receipt })))),
        None => Err((StatusCode::PAYMENT_REQUIRED, "the card is declined")),
    }
}
