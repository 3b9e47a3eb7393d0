//! Conversions between a handler's response, the recorded response, and the response to the client.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use campanile::prelude::{BoxError, IdempotencyError, Outcome};
use campanile::{error, reply::ReplyCodec};
use tower::timeout::error::Elapsed;

/// Turns a response that says that nothing was carried out into an error, so that it is not
/// recorded.
///
/// The draft leaves it to the server which errors to keep for repeated requests. This example keeps
/// none: a kept error for a forgotten content type or a declined card would be repeated for the
/// whole retention, whatever the client fixes. So a handler may respond with 4xx or 5xx only if it
/// has done nothing.
pub(crate) async fn reject_errors(response: Response) -> Result<Response<Bytes>, BoxError> {
    let (head, body) = response.into_parts();
    // The payment is already made, so this is not an error: if the body cannot be read, the
    // response is kept without it.
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let answer = Response::from_parts(head, body);
    if answer.status().is_client_error() || answer.status().is_server_error() {
        return Err(ErrorResponse(answer).into());
    }
    Ok(answer)
}

/// A response of the handler, or of one of its extractors, which says that nothing was carried out.
#[derive(Debug)]
pub(crate) struct ErrorResponse(pub(crate) Response<Bytes>);

impl fmt::Display for ErrorResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "answered {}", self.0.status())
    }
}

impl Error for ErrorResponse {}

/// Keeps the status in three digits, the content type up to the end of the line, and the body. If
/// your clients need other headers, such as `location`, add them here.
pub(crate) struct AnswerCodec;

impl ReplyCodec<Response<Bytes>> for AnswerCodec {
    fn encode(&self, answer: &Response<Bytes>) -> Result<Option<Bytes>, BoxError> {
        let content_type = answer.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.map_or(&b""[..], HeaderValue::as_bytes);
        let status = answer.status();
        Ok(Some([status.as_str().as_bytes(), content_type, b"\n", answer.body()].concat().into()))
    }

    fn decode(&self, bytes: Bytes) -> Result<Option<Response<Bytes>>, BoxError> {
        let end = bytes.iter().position(|&byte| byte == b'\n').ok_or("no end of line")?;
        let (status, content_type) = bytes[..end].split_at_checked(3).ok_or("no status")?;
        let mut answer = Response::builder().status(status);
        if !content_type.is_empty() {
            answer = answer.header(header::CONTENT_TYPE, content_type);
        }
        Ok(Some(answer.body(bytes.slice(end + 1..))?))
    }
}

/// The response of this run, or the recorded one.
pub(crate) fn into_response(outcome: Outcome<Response<Bytes>>) -> Response {
    let is_given_up = matches!(outcome, Outcome::GivenUp(_));
    match outcome.into_reply() {
        Some(answer) => answer.map(Body::from),
        None if is_given_up => (StatusCode::INTERNAL_SERVER_ERROR, "given up").into_response(),
        // done, but the response was larger than `with_max_reply_bytes`
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

/// Converts an error into a response, the layer's errors as the draft requires.
pub(crate) async fn error_response(error: BoxError) -> Response {
    // the handler's own response
    if let Some(ErrorResponse(answer)) = error::find(&*error) {
        return answer.clone().map(Body::from);
    }
    let refused = IdempotencyError::find(&*error);
    let (status, retry_after) = match refused {
        Some(IdempotencyError::Locked { retry_after, settled, .. }) => {
            // If the run is in this process, it may end at any moment. Otherwise its process may
            // have died; the client should return after the lock has expired.
            let after = if settled.is_some() { Duration::ZERO } else { *retry_after };
            (StatusCode::CONFLICT, Some(after))
        }
        Some(IdempotencyError::Mismatch { .. }) => (StatusCode::UNPROCESSABLE_ENTITY, None),
        // no key or an invalid one, or the body could not be read
        Some(IdempotencyError::MissingKey | IdempotencyError::InvalidKey(_)) | None => {
            (StatusCode::BAD_REQUEST, None)
        }
        // the handler panicked, or its response could not be read; a timeout is handled by the next
        // arm
        Some(IdempotencyError::AttemptFailed(failed)) if !failed.source.is::<Elapsed>() => {
            (StatusCode::INTERNAL_SERVER_ERROR, failed.retry_after)
        }
        // the handler was too slow or failed before, or the store is unavailable: the client may
        // repeat the request
        Some(refused) => (StatusCode::SERVICE_UNAVAILABLE, refused.retry_after()),
    };
    let text = match refused {
        Some(IdempotencyError::Locked { .. }) => "the first request is in progress".into(),
        _ => error.to_string(),
    };
    let mut response = (status, text).into_response();
    if let Some(after) = retry_after {
        let seconds = HeaderValue::from(after.as_secs() + 1);
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    response
}
