//! Campanile's own headers, which every dead letter has. All values are text, except the key.

use bytes::Bytes;
use campanile_core::IdempotencyKey;

use super::cause::CauseKind;
use super::{Header, Letter, LetterLock, MAX_KEPT, put};

pub(super) const CAUSE: &str = "campanile-cause";
pub(super) const KEY: &str = "campanile-key";
pub(super) const NAMESPACE: &str = "campanile-namespace";
pub(super) const TOKEN: &str = "campanile-token";
pub(super) const ATTEMPTS: &str = "campanile-attempts";
pub(super) const GIVE_UPS: &str = "campanile-give-ups";
/// In a truncated letter: the size of the payload in bytes.
pub(super) const TRUNCATED_PAYLOAD: &str = "campanile-truncated-payload-bytes";
/// In a truncated letter: the number of headers that were left out.
pub(super) const TRUNCATED_HEADERS: &str = "campanile-truncated-headers";

pub(super) fn is_header(name: &str) -> bool {
    [CAUSE, KEY, NAMESPACE, TOKEN, ATTEMPTS, GIVE_UPS, TRUNCATED_PAYLOAD, TRUNCATED_HEADERS]
        .contains(&name)
}

pub(super) fn add(letter: &Letter<'_>, omitted: usize, headers: &mut Vec<Header>) {
    let cause = letter.cause;
    put(headers, CAUSE, cause_name(cause.kind));
    // A truncated key would identify another event.
    let fits = |key: &&IdempotencyKey| !letter.truncated || key.as_bytes().len() <= MAX_KEPT;
    if let Some(key) = cause.key.as_ref().filter(fits) {
        put(headers, KEY, Bytes::copy_from_slice(key.as_bytes()));
    }
    if let Some(LetterLock { namespace, token }) = letter.lock {
        put(headers, NAMESPACE, namespace.to_string());
        put(headers, TOKEN, token.to_string());
    }
    if let Some(attempts) = cause.attempts {
        put(headers, ATTEMPTS, attempts.to_string());
    }
    if let Some(give_ups) = cause.give_ups {
        put(headers, GIVE_UPS, give_ups.to_string());
    }
    if letter.truncated {
        let bytes = letter.record.payload().map_or(0, Bytes::len);
        put(headers, TRUNCATED_PAYLOAD, bytes.to_string());
        put(headers, TRUNCATED_HEADERS, omitted.to_string());
    }
}

fn cause_name(kind: CauseKind) -> &'static str {
    match kind {
        CauseKind::AttemptFailed => "failed",
        CauseKind::Exhausted => "exhausted",
        CauseKind::MissingKey => "missing-key",
        CauseKind::InvalidKey => "invalid-key",
        CauseKind::Mismatch => "mismatch",
        CauseKind::DecodeError => "undecodable",
        CauseKind::Error => "error",
    }
}
