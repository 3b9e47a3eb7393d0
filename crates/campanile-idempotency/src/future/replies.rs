//! Replies on their way into an entry and out of it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;

use crate::layer::Shared;
use crate::reply::ReplyCodec;

/// The bytes to keep. The effect has happened, so nothing here can be an error.
pub(super) fn encode<T, C: ReplyCodec<T>>(shared: &Shared<C>, reply: &T) -> Option<Bytes> {
    let most = shared.guard.max_reply_bytes;
    match catch_unwind(AssertUnwindSafe(|| shared.codec.encode(reply))) {
        Ok(Ok(Some(bytes))) if bytes.len() > most => {
            tracing::debug!(size = bytes.len(), most, "completed without its reply: too large");
            None
        }
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) => {
            tracing::warn!(error, "completed without its reply: it cannot be encoded");
            None
        }
        Err(_) => {
            tracing::warn!("completed without its reply: its encoding panicked");
            None
        }
    }
}

pub(super) fn decode<T, C: ReplyCodec<T>>(shared: &Shared<C>, bytes: Bytes) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(|| shared.codec.decode(bytes))) {
        Ok(Ok(reply)) => reply,
        Ok(Err(error)) => {
            tracing::warn!(error, "duplicate answered without the reply: it cannot be decoded");
            None
        }
        Err(_) => {
            tracing::warn!("duplicate answered without the reply: its decoding panicked");
            None
        }
    }
}
