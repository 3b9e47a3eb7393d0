//! Campanile's own headers, which every dead letter has. All values are text, except the key.

use bytes::Bytes;
use campanile_core::IdempotencyKey;

use super::cause::Kind;
use super::{Header, KEPT, Letter, put};

pub(super) const CAUSE: &str = "campanile-cause";
pub(super) const KEY: &str = "campanile-key";
pub(super) const TOKEN: &str = "campanile-token";
pub(super) const ATTEMPTS: &str = "campanile-attempts";
pub(super) const BURIALS: &str = "campanile-burials";
/// In a truncated letter: the size of the payload in bytes.
pub(super) const PAYLOAD: &str = "campanile-truncated-payload-bytes";
/// In a truncated letter: the number of headers that were left out.
pub(super) const LEFT_OUT: &str = "campanile-truncated-headers";

/// Returns whether this is the name of one of these headers.
pub(super) fn is_one(name: &str) -> bool {
    [CAUSE, KEY, TOKEN, ATTEMPTS, BURIALS, PAYLOAD, LEFT_OUT].contains(&name)
}

pub(super) fn add(letter: &Letter<'_>, left_out: usize, headers: &mut Vec<Header>) {
    let cause = letter.cause;
    put(headers, CAUSE, word(cause.kind));
    // A truncated key would identify another event.
    let fits = |key: &&IdempotencyKey| !letter.truncated || key.as_bytes().len() <= KEPT;
    if let Some(key) = cause.key.as_ref().filter(fits) {
        put(headers, KEY, Bytes::copy_from_slice(key.as_bytes()));
    }
    if let Some(token) = letter.token {
        put(headers, TOKEN, token.to_string());
    }
    if let Some(attempts) = cause.attempts {
        put(headers, ATTEMPTS, attempts.to_string());
    }
    if let Some(burials) = cause.burials {
        put(headers, BURIALS, burials.to_string());
    }
    if letter.truncated {
        let bytes = letter.record.payload().map_or(0, Bytes::len);
        put(headers, PAYLOAD, bytes.to_string());
        put(headers, LEFT_OUT, left_out.to_string());
    }
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Failed => "failed",
        Kind::Exhausted => "exhausted",
        Kind::MissingKey => "missing-key",
        Kind::InvalidKey => "invalid-key",
        Kind::Mismatch => "mismatch",
        Kind::DecodeError => "undecodable",
        Kind::Error => "error",
    }
}
