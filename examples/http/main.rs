//! A `POST` that is safe to repeat: `cargo run --example http`.
//!
//! The route keeps to the IETF's draft "The Idempotency-Key HTTP Header Field"
//! (draft-ietf-httpapi-idempotency-key-header): a repeat gets the first answer, 400 without the
//! header, 409 while the first is at work, 422 for another payload under the same key.
//!
//! It listens on a free port of this machine, and `client` tries all of that on it. The entries are
//! in a `MemoryStore`, or in Redis with `--redis URL`.

mod client;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::error_handling::HandleErrorLayer;
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use campanile::ReplyCodec;
use campanile::policy::OnGivenUp;
use campanile::prelude::{
    BoxError, IdempotencyError, IdempotencyLayer, Lock, MemoryStore, Outcome, RedisStore, key,
};
use campanile::store::{BoxStore, Store};
use campanile_examples::{Ledger, redis_from_args};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tower::ServiceBuilder;

const MAX_BODY: usize = 64 * 1024;

/// The route: all that comes to a `POST /payments`, from outside in.
fn payments(store: BoxStore, terminal: Terminal) -> Result<Router, BoxError> {
    // With accounts, begin with the caller's, `key::from_fn(account).and(..)`: or whoever guesses a
    // key gets the answer of somebody else.
    let by_header = key::from_fn(|request: &Request<Bytes>| {
        Some(request.headers().get("idempotency-key")?.as_bytes().to_vec())
    });
    let by_header_and_body = by_header
        .fingerprint_by(|request: &Request<Bytes>, parts| _ = parts.update(request.body()));
    let idempotency = IdempotencyLayer::new(store, "payments", by_header_and_body)?
        .with_reply(StatusAndBody)
        // nobody collects dead letters here
        .with_given_up(OnGivenUp::Reject);

    let once = ServiceBuilder::new()
        // the status for what was refused
        .layer(HandleErrorLayer::new(refuse))
        // the answer of this run, or of the first
        .map_response(answer)
        // the fingerprint is of the whole body
        .filter_async(read)
        // one lock for each key, renewed while the handler runs, and its answer kept
        .layer(idempotency)
        // a slow handler fails its attempt
        .timeout(Duration::from_secs(10))
        // a server's error fails its attempt, too: as an answer it would be kept for good
        .and_then(keep)
        .map_request(|request: Request<Bytes>| request.map(Body::from));
    Ok(Router::new().route("/payments", post(charge).route_layer(once)).with_state(terminal))
}

/// Buffers the body.
async fn read(request: Request) -> Result<Request<Bytes>, BoxError> {
    let (head, body) = request.into_parts();
    Ok(Request::from_parts(head, to_bytes(body, MAX_BODY).await?))
}

type Answer = (StatusCode, Bytes);

/// What is kept of an answer: all but a server's error.
async fn keep(response: Response) -> Result<Answer, BoxError> {
    let status = response.status();
    if status.is_server_error() {
        return Err(format!("answered {status}").into());
    }
    Ok((status, to_bytes(response.into_body(), MAX_BODY).await?))
}

/// Two bytes of status, then the body.
struct StatusAndBody;

impl ReplyCodec<Answer> for StatusAndBody {
    fn encode(&self, (status, body): &Answer) -> Result<Option<Bytes>, BoxError> {
        Ok(Some([&status.as_u16().to_be_bytes(), &body[..]].concat().into()))
    }

    fn decode(&self, bytes: Bytes) -> Result<Option<Answer>, BoxError> {
        let (status, body) = bytes.split_first_chunk().ok_or("no status")?;
        let status = StatusCode::from_u16(u16::from_be_bytes(*status))?;
        Ok(Some((status, bytes.slice_ref(body))))
    }
}

/// The first answer again, or this one.
fn answer(outcome: Outcome<Answer>) -> Response {
    let is_parked = matches!(outcome, Outcome::Parked(_));
    match outcome.into_reply() {
        Some((status, body)) => {
            (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        None if is_parked => (StatusCode::INTERNAL_SERVER_ERROR, "given up").into_response(),
        // done, by an answer larger than `with_max_reply_bytes`
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

/// The status of each refusal, by the draft.
async fn refuse(error: BoxError) -> Response {
    let refused = IdempotencyError::find(&*error);
    let status = match refused {
        Some(IdempotencyError::Locked { .. }) => StatusCode::CONFLICT,
        Some(IdempotencyError::Mismatch { .. }) => StatusCode::UNPROCESSABLE_ENTITY,
        // no key, or the body could not be read
        Some(IdempotencyError::MissingKey) | None => StatusCode::BAD_REQUEST,
        // the handler failed, or the store is away: the same may be sent again
        Some(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut response = (status, error.to_string()).into_response();
    if let Some(after) = refused.and_then(IdempotencyError::retry_after) {
        let seconds = HeaderValue::from(after.as_secs() + 1);
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    response
}

#[derive(Deserialize)]
struct Payment {
    cents: u64,
}

/// Charges cards, one at a time, and tells when it begins.
#[derive(Clone)]
struct Terminal {
    free: Arc<Semaphore>,
    begun: Ledger<u64>,
}

/// The handler: charges a payment. The lock is an extension of the request.
async fn charge(
    State(terminal): State<Terminal>,
    Extension(lock): Extension<Lock>,
    Json(Payment { cents }): Json<Payment>,
) -> Result<impl IntoResponse, StatusCode> {
    terminal.begun.note(cents);
    let _free = terminal.free.acquire().await.map_err(|_| StatusCode::BAD_GATEWAY)?;
    lock.check().map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    // The charge is the last step, as in every handler. Its number is drawn: no second run has it.
    Ok((StatusCode::CREATED, Json(json!({ "cents": cents, "number": fastrand::u32(..) }))))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let store = match redis_from_args()? {
        Some(url) => RedisStore::connect(url.as_str()).await?.boxed(),
        None => MemoryStore::new().boxed(),
    };
    let terminal = Terminal { free: Arc::new(Semaphore::new(1)), begun: Ledger::default() };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let app = payments(store, terminal.clone())?;
    tokio::spawn(axum::serve(listener, app).into_future());
    client::play(address, &terminal).await
}
