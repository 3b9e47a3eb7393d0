//! Payloads in JSON.

use campanile_core::{BoxError, DecodeError, DecodeLayer, Record, Request, error};
use serde::Deserialize;
use tower::{Layer, Service, service_fn};

/// A body with a field of each shape.
#[derive(Deserialize)]
struct Body {
    id: String,
    cents: u64,
    #[serde(default)]
    items: Vec<Body>,
    #[serde(default)]
    rate: Option<f64>,
}

/// A payload is decoded, or refused with its place and in words that are never those of the payload.
#[test]
fn payload() {
    bolero::check!(name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/payload")).for_each(
        |bytes: &[u8]| {
            let payload = bytes.to_vec();
            let lines = 1 + bytes.iter().filter(|byte| **byte == b'\n').count();
            let record = Record::builder("payments", 0, 7).payload(payload).build();
            if let Err(error) = decode(record) {
                let found: &DecodeError = error::find(&*error).expect("it is named");
                assert_eq!(found.to_string(), "cannot decode payments/0@7");
                let text = std::error::Error::source(found).expect("the reason").to_string();
                let (what, place) = text.split_once(" at line ").expect("the place");
                let what = what.strip_prefix("failed to deserialize JSON: ").expect("the prefix");
                assert!(REASONS.contains(&what), "{what}");
                let (line, column) = place.split_once(" column ").expect("the column");
                assert!((1..=lines).contains(&line.parse().unwrap()), "{text}");
                assert!((1..=bytes.len().max(1)).contains(&column.parse().unwrap()), "{text}");
            }
        },
    );
}

/// What the error of a body of this type can say.
const REASONS: &[&str] = &[
    "syntax error",
    "unexpected end of input",
    "value of the wrong type or shape",
    "missing field `id`",
    "missing field `cents`",
];

fn decode(record: Record) -> Result<u64, BoxError> {
    let sum = async |request: Request<Body>| Ok::<_, BoxError>(sum(request.body()));
    let mut service = DecodeLayer::json().layer(service_fn(sum));
    tokio_test::block_on(service.call(record))
}

fn sum(body: &Body) -> u64 {
    let items = body.items.iter().map(sum);
    items.fold(body.cents ^ body.id.len() as u64, u64::wrapping_add)
        ^ body.rate.map_or(0, f64::to_bits)
}
