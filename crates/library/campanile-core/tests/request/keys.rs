//! Where extractors find keys, and which values are not keys.

use campanile_core::key::{self, IdempotencyKey};
use campanile_core::{BoxError, IntoKey, KeyExtractor, Namespace, Record, Request, StoreKey};
use proptest::prelude::*;

fn request<B>(body: B) -> Request<B> {
    let record = Record::builder("payments", 3, 42)
        .key("account")
        .header("id", "first")
        .header("id", "last")
        .null_header("null")
        .header("empty", "")
        .header("binary", &b"\xff\x00\n{}"[..])
        .build();
    Request::new(record, body)
}

fn extract_key<R>(extractor: &impl KeyExtractor<R>, request: &R) -> Option<Vec<u8>> {
    extractor.extract(request).unwrap().map(|key| key.as_bytes().to_vec())
}

#[test]
fn header_key_is_last_value_of_that_name() {
    assert_eq!(extract_key(&key::header("id"), &request(())), Some(b"last".to_vec()));
}

#[test]
fn absent_null_or_empty_header_is_no_key() {
    for name in ["absent", "null", "empty"] {
        assert_eq!(extract_key(&key::header(name), &request(())), None, "{name}");
    }
}

#[test]
fn binary_header_is_a_key() {
    assert_eq!(extract_key(&key::header("binary"), &request(())), Some(b"\xff\x00\n{}".to_vec()));
}

#[test]
fn field_borrows_from_body_and_body_computes_key() {
    struct Payment {
        id: String,
        number: u64,
    }
    let request = request(Payment { id: "p-1".into(), number: 7 });
    assert_eq!(extract_key(&key::field(|p: &Payment| &p.id), &request), Some(b"p-1".to_vec()));
    assert_eq!(
        extract_key(&key::field(|p: &Payment| p.id.as_str()), &request),
        Some(b"p-1".to_vec())
    );
    assert_eq!(extract_key(&key::body(|p: &Payment| p.number), &request), Some(b"7".to_vec()));
}

#[test]
fn coordinates_and_record_key_are_keys_if_chosen() {
    assert_eq!(extract_key(&key::coordinates(), &request(())), Some(b"payments/3@42".to_vec()));
    let record_key = key::record_key_only_first_record_counts();
    assert_eq!(extract_key(&record_key, &request(())), Some(b"account".to_vec()));
}

#[test]
fn copy_uses_coordinates_of_its_origin_as_key() {
    let origin = request(()).record().coordinates().clone();
    let copy = Record::builder("payments.retry", 0, 7).origin(origin).build();
    let found = extract_key(&key::coordinates(), &Request::new(copy, ()));
    assert_eq!(found, Some(b"payments/3@42".to_vec()));
}

#[test]
fn or_uses_first_key_found_and_and_requires_both() {
    let or = key::header("absent").or(key::header("empty")).or(key::header("id"));
    assert_eq!(extract_key(&or, &request(())), Some(b"last".to_vec()));
    let and = key::header("id").and(key::header("absent"));
    assert_eq!(extract_key(&and, &request(())), None);
}

#[test]
fn or_uses_fingerprint_of_extractor_that_found_key() {
    let by = |name: &'static str| {
        key::header(name).fingerprint_by(move |_: &Request<()>, parts| parts.update(name))
    };
    let alone = |name| by(name).fingerprint(&request(()));
    assert_eq!(by("id").or(by("absent")).fingerprint(&request(())), alone("id"));
    assert_eq!(by("absent").or(by("id")).fingerprint(&request(())), alone("id"));
    assert_eq!(key::header("id").or(by("id")).fingerprint(&request(())), None);
}

#[test]
fn and_combines_both_fingerprints() {
    let by = |part: &'static str| {
        key::header("id").fingerprint_by(move |_: &Request<()>, parts| parts.update(part))
    };
    let fingerprint_of = |one, other| by(one).and(by(other)).fingerprint(&request(())).unwrap();
    assert_eq!(fingerprint_of("a", "b"), fingerprint_of("a", "b"));
    assert_ne!(fingerprint_of("a", "b"), fingerprint_of("a", "c"));
    assert_ne!(fingerprint_of("a", "b"), fingerprint_of("c", "b"));
    let one = by("a").and(key::header("id")).fingerprint(&request(()));
    assert_eq!(one, by("a").fingerprint(&request(())));
}

#[test]
fn extractor_error_is_not_a_missing_key() {
    let broken = key::from_fn(|_: &Request<()>| Err::<String, _>(BoxError::from("no key")));
    assert_eq!(broken.extract(&request(())).unwrap_err().to_string(), "no key");
    let or = broken.or(key::header("id"));
    assert!(or.extract(&request(())).is_err());
}

#[test]
fn fingerprint_distinguishes_part_boundaries() {
    let by = key::header("id").fingerprint_by(|r: &Request<(&str, &str)>, hasher| {
        hasher.update(r.body().0);
        hasher.update(r.body().1);
    });
    let fingerprint_of = |one, other| by.fingerprint(&request((one, other))).unwrap();
    assert_eq!(fingerprint_of("ab", "c"), fingerprint_of("ab", "c"));
    assert_ne!(fingerprint_of("ab", "c"), fingerprint_of("a", "bc"));
    assert_eq!(key::header("id").fingerprint(&request(())), None);
}

#[test]
fn integers_are_decimal_keys_and_empty_values_are_none() {
    assert_eq!((&"p-1".to_owned()).into_key().unwrap().unwrap().as_bytes(), b"p-1");
    assert_eq!((-7_i64).into_key().unwrap().unwrap().as_bytes(), b"-7");
    assert_eq!(u128::MAX.into_key().unwrap().unwrap().as_bytes(), u128::MAX.to_string().as_bytes());
    let key = IdempotencyKey::new("p-1").unwrap();
    assert_eq!(key.clone().into_key().unwrap(), Some(key));
    assert!("".into_key().unwrap().is_none());
    assert!(None::<String>.into_key().unwrap().is_none());
    assert!(Err::<String, _>("broken").into_key().is_err());
}

#[test]
fn key_display_is_escaped_and_truncated_and_debug_hides_it() {
    let key = IdempotencyKey::new(&b"line\nbreak"[..]).unwrap();
    assert_eq!(key.to_string(), "line\\nbreak");
    assert_eq!(format!("{key:?}"), "IdempotencyKey(10 bytes)");
    assert_eq!(key.to_text(), "line\nbreak");
    let long = |bytes| IdempotencyKey::new(vec![b'x'; bytes]).unwrap().to_string();
    assert_eq!(long(128), "x".repeat(128));
    assert_eq!(long(1 << 20), format!("{}… (1048576 bytes)", "x".repeat(128)));
    let store_key = StoreKey::new(Namespace::try_from("n").unwrap(), &key);
    assert!(!format!("{store_key:?}").contains("break"));
}

#[test]
fn namespace_allows_only_short_plain_names() {
    for good in ["a", "payments-2.eu_west", &"x".repeat(64)] {
        assert_eq!(Namespace::try_from(good).unwrap().as_str(), good);
    }
    for bad in ["", "Payments", "a b", "{a}", "ä", &"x".repeat(65)] {
        let error = Namespace::try_from(bad).unwrap_err().to_string();
        assert!(error.contains("[a-z0-9._-]"), "{error}");
    }
}

proptest! {
    /// The same bytes, split at different positions, are different pairs.
    #[test]
    fn and_of_different_pairs_is_never_the_same_key(
        (bytes, one, other) in proptest::collection::vec(0..4_u8, 3..12)
            .prop_flat_map(|bytes| (1..bytes.len(), 1..bytes.len(), Just(bytes)))
            .prop_map(|(one, other, bytes)| (bytes, one, other)),
    ) {
        let make = |at: usize| {
            let (left, right) = bytes.split_at(at);
            let (left, right) = (left.to_vec(), right.to_vec());
            let and = key::body(move |_: &()| left.clone()).and(key::body(move |_: &()| right.clone()));
            and.extract(&request(())).unwrap().unwrap()
        };
        prop_assert_eq!(make(one) == make(other), one == other);
    }
}
