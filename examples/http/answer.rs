//! From a handler's answer to what is recorded, and back to what the client gets.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use campanile::prelude::{BoxError, IdempotencyError, Outcome};
use campanile::{ReplyCodec, error};
use tower::timeout::error::Elapsed;

/// Tells what was carried out, and may be recorded, from what was not.
///
/// The draft leaves it to the server which errors are kept for repeats. Here none is: kept, a
/// forgotten content type or a declined card would be answered for the whole retention, whatever the
/// client mends. So a handler answers 4xx or 5xx only if it has done nothing.
pub(crate) async fn done(response: Response) -> Result<Response<Bytes>, BoxError> {
    let (head, body) = response.into_parts();
    // By now the payment is made, so this is no error: an answer that breaks off is kept without its
    // body.
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let answer = Response::from_parts(head, body);
    if answer.status().is_client_error() || answer.status().is_server_error() {
        return Err(NotDone(answer).into());
    }
    Ok(answer)
}

/// An answer that says that nothing was carried out: of the handler, or of one of its extractors.
#[derive(Debug)]
pub(crate) struct NotDone(pub(crate) Response<Bytes>);

impl fmt::Display for NotDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "answered {}", self.0.status())
    }
}

impl Error for NotDone {}

/// Keeps the status in three digits, the content type up to the end of the line, and the body. What
/// else of the head your clients need, as `location`, belongs here, too.
pub(crate) struct KeptAnswer;

impl ReplyCodec<Response<Bytes>> for KeptAnswer {
    fn encode(&self, answer: &Response<Bytes>) -> Result<Option<Bytes>, BoxError> {
        let content_type = answer.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.map_or(&b""[..], HeaderValue::as_bytes);
        let status = answer.status();
        Ok(Some([status.as_str().as_bytes(), content_type, b"\n", answer.body()].concat().into()))
    }

    fn decode(&self, kept: Bytes) -> Result<Option<Response<Bytes>>, BoxError> {
        let end = kept.iter().position(|&byte| byte == b'\n').ok_or("the line has no end")?;
        let (status, content_type) = kept[..end].split_at_checked(3).ok_or("no status")?;
        let mut answer = Response::builder().status(status);
        if !content_type.is_empty() {
            answer = answer.header(header::CONTENT_TYPE, content_type);
        }
        Ok(Some(answer.body(kept.slice(end + 1..))?))
    }
}

/// The first answer again, or this one.
pub(crate) fn answer(outcome: Outcome<Response<Bytes>>) -> Response {
    let is_parked = matches!(outcome, Outcome::Parked(_));
    match outcome.into_reply() {
        Some(answer) => answer.map(Body::from),
        None if is_parked => (StatusCode::INTERNAL_SERVER_ERROR, "given up").into_response(),
        // done, by an answer larger than `with_max_reply_bytes`
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

/// What is answered where there is no outcome; the layer's refusals by the draft.
pub(crate) async fn refuse(error: BoxError) -> Response {
    // what the handler has answered
    if let Some(NotDone(answer)) = error::find(&*error) {
        return answer.clone().map(Body::from);
    }
    let refused = IdempotencyError::find(&*error);
    let (status, retry_after) = match refused {
        Some(IdempotencyError::Locked { retry_after, settled, .. }) => {
            // In this process it may end at any moment. Elsewhere it may have died: its lock has
            // expired by then.
            let after = if settled.is_some() { Duration::ZERO } else { *retry_after };
            (StatusCode::CONFLICT, Some(after))
        }
        Some(IdempotencyError::Mismatch { .. }) => (StatusCode::UNPROCESSABLE_ENTITY, None),
        // no key, or none that can be one, or the body could not be read
        Some(IdempotencyError::MissingKey | IdempotencyError::InvalidKey(_)) | None => {
            (StatusCode::BAD_REQUEST, None)
        }
        // it has panicked, or its answer could not be read; a time-out goes to the next line
        Some(IdempotencyError::Failed(failed)) if !failed.source.is::<Elapsed>() => {
            (StatusCode::INTERNAL_SERVER_ERROR, failed.retry_after)
        }
        // the handler was too slow or failed before, or the store is away: the same may be sent again
        Some(refused) => (StatusCode::SERVICE_UNAVAILABLE, refused.retry_after()),
    };
    let text = match refused {
        Some(IdempotencyError::Locked { .. }) => "the first is at work".into(),
        _ => error.to_string(),
    };
    let mut response = (status, text).into_response();
    if let Some(after) = retry_after {
        let seconds = HeaderValue::from(after.as_secs() + 1);
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    response
}
