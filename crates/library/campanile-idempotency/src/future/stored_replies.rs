//! Encoding and decoding of the replies that entries keep.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use campanile_core::{BoxError, IdempotencyKey, Record};

use crate::error::ReplyTooLarge;
use crate::fields::coordinates;
use crate::layer::LayerParts;
use crate::policy::OnLargeReply;
use crate::reply::ReplyCodec;

/// The effect has happened, so a reply that cannot be kept is an error only if the policy for large
/// replies says so. It is also an error if the codec rejects the reply.
pub(crate) fn encode_reply<T, C: ReplyCodec<T>>(
    layer: &LayerParts<C>,
    key: &IdempotencyKey,
    record: Option<&Record>,
    reply: &T,
) -> Result<Option<Bytes>, BoxError> {
    let policies = &layer.policies;
    let namespace = policies.namespace.as_str();
    catch_panic(|| layer.codec.check(reply, record))?;
    let encoded = catch_panic(|| match (layer.codec.encode(reply)?, &policies.cipher) {
        (Some(bytes), Some(cipher)) => cipher.seal(&policies.namespace, key, bytes).map(Some),
        (bytes, _) => Ok(bytes),
    });
    match encoded {
        Ok(Some(bytes)) if bytes.len() > policies.max_reply_bytes => {
            let error = ReplyTooLarge { size: bytes.len(), limit: policies.max_reply_bytes };
            match policies.large_reply {
                OnLargeReply::Fail => Err(error.into()),
                OnLargeReply::KeepNone => {
                    tracing::info!(
                        record = coordinates(record),
                        namespace,
                        %error,
                        "reply too large; completing without it"
                    );
                    Ok(None)
                }
            }
        }
        Ok(bytes) => Ok(bytes),
        Err(error) => {
            tracing::warn!(
                record = coordinates(record),
                namespace,
                error,
                "failed to encode the reply; completing without it"
            );
            Ok(None)
        }
    }
}

pub(super) fn decode_reply<T, C: ReplyCodec<T>>(
    layer: &LayerParts<C>,
    key: &IdempotencyKey,
    record: Option<&Record>,
    bytes: Bytes,
) -> Option<T> {
    let policies = &layer.policies;
    let decoded = catch_panic(|| {
        let bytes = match &policies.cipher {
            Some(cipher) => cipher.open(&policies.namespace, key, bytes)?,
            None => bytes,
        };
        layer.codec.decode(bytes)
    });
    decoded.unwrap_or_else(|error| {
        tracing::warn!(
            record = coordinates(record),
            namespace = policies.namespace.as_str(),
            error,
            "failed to decode the stored reply; answering the duplicate without it"
        );
        None
    })
}

pub(crate) fn catch_panic<T>(call: impl FnOnce() -> Result<T, BoxError>) -> Result<T, BoxError> {
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err("the codec or cipher panicked".into()))
}
