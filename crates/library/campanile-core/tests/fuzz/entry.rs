//! The stored form of an entry.

use std::time::{Duration, SystemTime};

use campanile_core::limits::{MAX_DETAIL_BYTES, MAX_ERROR_BYTES};
use campanile_core::{
    Entry, FencingToken, Fingerprint, Grant, IdempotencyKey, Operation, Owner, Reply, TraceContext,
    Unreadable, step,
};

#[test]
fn entry() {
    bolero::check!(name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/entry")).for_each(
        |bytes: &[u8]| match Entry::from_bytes(bytes) {
            Ok(entry) => check_entry(&entry, bytes),
            Err(unreadable) => check_unreadable(unreadable, bytes),
        },
    );
}

/// The bytes are those that the protocol accepts, and every step keeps them so.
fn check_entry(entry: &Entry, bytes: &[u8]) {
    assert_eq!(refusal(bytes), None);
    assert_eq!(entry.to_bytes(), bytes);
    check_parts(entry);
    for operation in operations(entry) {
        for now in [SystemTime::UNIX_EPOCH, entry.at(), entry.at() + Duration::from_secs(7200)] {
            let (after, reply) = step(Some(entry.clone()), &operation, now);
            let after = after.expect("no operation deletes an entry");
            assert_eq!(Entry::from_bytes(&after.to_bytes()), Ok(after.clone()));
            check_parts(&after);
            assert!(after.token() >= entry.token());
            if after.token() > entry.token() {
                let is_grant = matches!(reply, Reply::Acquired { .. } | Reply::Exhausted { .. });
                assert!(is_grant, "{reply:?}");
            }
            let reported = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
            if let Reply::AlreadyGivenUp { reason: text, .. }
            | Reply::Exhausted { last_error: text, .. } = &reply
            {
                // The replacement of an invalid byte has three.
                assert!(reported(text) <= 3 * after.to_bytes().len());
            }
        }
    }
}

/// The error says which rule of the protocol the bytes break.
fn check_unreadable(unreadable: Unreadable, bytes: &[u8]) {
    assert_eq!(refusal(bytes), Some(unreadable));
    assert!(unreadable.to_string().starts_with("unreadable entry: "));
}

/// The rules in `docs/protocol.md`, in the order of the bytes.
fn refusal(bytes: &[u8]) -> Option<Unreadable> {
    let Some(header) = bytes.first_chunk::<44>() else {
        return Some(Unreadable::Short { length: bytes.len() });
    };
    let token = u64::from_be_bytes(header[8..16].try_into().unwrap());
    match (header[0], header[1] & 0xC0, header[1] & 7) {
        (0xC1, 0, 1..=4) if token < 1 << 53 => None,
        (0xC1, 0, 1..=4) => Some(Unreadable::Token),
        (0xC1, 0, state) => Some(Unreadable::State(state)),
        (0xC1, flags, _) => Some(Unreadable::Flags(flags)),
        (version, ..) => Some(Unreadable::Version(version)),
    }
}

/// Reads everything of the entry, which must be within the limits.
fn check_parts(entry: &Entry) {
    let size = entry.to_bytes().len();
    assert!(entry.reply().is_none_or(|reply| reply.len() <= size));
    assert!(entry.error().is_none_or(|error| !error.is_empty()));
    assert!(entry.reply().is_none() || entry.error().is_none());
    assert!(entry.created() >= SystemTime::UNIX_EPOCH && entry.at() >= SystemTime::UNIX_EPOCH);
    let Some(details) = entry.details() else { return };
    assert!(details.key().is_none_or(|key| key.len() <= MAX_DETAIL_BYTES));
    assert!(details.instance().is_none_or(|name| name.len() <= 3 * MAX_DETAIL_BYTES));
    assert!(details.coordinates().is_none_or(|at| at.topic.len() <= MAX_DETAIL_BYTES));
    let trace = details.trace().map(|trace| trace.to_string());
    assert!(trace.is_none_or(|trace| trace.parse::<TraceContext>().is_ok()));
    let _ = (details.owner(), format!("{details:?}"));
}

/// Every operation, of the grant of the entry if it has one, and an acquire by another owner.
fn operations(entry: &Entry) -> Vec<Operation> {
    let owner = entry.owner().unwrap_or(Owner::new(1).unwrap());
    let other = Owner::new(owner.get() ^ u64::MAX).unwrap_or(owner);
    let (token, hour) = (entry.token(), Duration::from_secs(3600));
    let grant = Grant { token, owner };
    let fingerprint = Some(Fingerprint::of(b"payload"));
    let key = IdempotencyKey::new(entry.to_bytes()).unwrap();
    let details = campanile_core::Details::builder(other).key(&key).instance("host/1").build();
    let acquire = |owner, fingerprint, details| Operation::Acquire {
        owner,
        ttl: hour,
        max_attempts: 3,
        fingerprint,
        floor: FencingToken::ZERO,
        details,
    };
    let text = "é".repeat(MAX_ERROR_BYTES);
    vec![
        acquire(owner, None, None),
        acquire(other, entry.fingerprint(), Some(details.clone())),
        acquire(other, fingerprint, None),
        Operation::Renew { grant, ttl: hour },
        Operation::Complete {
            grant,
            attempt: entry.attempt(),
            fingerprint,
            reply: Some("reply".into()),
            details: Some(details),
        },
        Operation::Complete { grant, attempt: 1, fingerprint: None, reply: None, details: None },
        Operation::Fail { grant, delay: hour, last: true, error: text.clone().into() },
        Operation::Fail { grant, delay: hour, last: false, error: "".into() },
        Operation::Release { grant, ran: true },
        Operation::Cancel { owner },
        Operation::GiveUp { grant, reason: text.into() },
        Operation::Redrive { token, force: true },
    ]
}
