//! Payloads that decode, and payloads that do not.

use std::error::Error;

use bytes::Bytes;
use campanile_core::decode::NotJson;
use campanile_core::{BoxError, DecodeError, DecodeLayer, Record, Request, error};
use serde::Deserialize;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

#[derive(Debug, PartialEq, Deserialize)]
struct Payment {
    cents: u64,
}

async fn decode<L, B>(layer: L, record: Record) -> Result<B, BoxError>
where
    L: tower::Layer<Echo>,
    L::Service: Service<Record, Response = B, Error = BoxError>,
{
    ServiceBuilder::new().layer(layer).service(Echo).oneshot(record).await
}

/// A service that responds with the body of the request.
#[derive(Clone)]
struct Echo;

impl<B: Send + 'static> Service<Request<B>> for Echo {
    type Response = B;
    type Error = BoxError;
    type Future = std::future::Ready<Result<B, BoxError>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), BoxError>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        std::future::ready(Ok(request.into_body()))
    }
}

fn record(payload: impl Into<Bytes>) -> Record {
    Record::builder("payments", 3, 42).payload(payload).build()
}

fn tombstone() -> Record {
    Record::builder("payments", 3, 42).build()
}

fn text(error: &(dyn Error + 'static)) -> String {
    let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    format!("{error}{source}")
}

#[tokio::test]
async fn json_is_decoded() {
    let body: Payment = decode(DecodeLayer::json(), record(r#"{"cents":100}"#)).await.unwrap();
    assert_eq!(body, Payment { cents: 100 });
}

#[tokio::test]
async fn decode_error_names_record_and_position_without_payload() {
    let cases: [(&[u8], &str); 7] = [
        (b"", "unexpected end of input at line 1 column 1"),
        (b"{\n", "unexpected end of input at line 2 column 1"),
        (b"secret", "syntax error at line 1 column 1"),
        (b"{\"secret", "unexpected end of input"),
        (b"{\"cents\":\"secret\"}", "value of the wrong type or shape at line 1 column 17"),
        (b"{}", "missing field `cents` at line 1 column 2"),
        (b"\xff\xfe", "syntax error"),
    ];
    for (payload, expected) in cases {
        let failed = decode::<_, Payment>(DecodeLayer::json(), record(payload)).await.unwrap_err();
        let failed = error::find::<DecodeError>(&*failed).unwrap();
        assert_eq!(failed.coordinates().to_string(), "payments/3@42");
        assert!(!failed.is_null_payload());
        let text = text(failed);
        assert!(text.contains("payments/3@42") && text.contains(expected), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }
}

#[tokio::test]
async fn json_error_has_its_position() {
    let record = record("{\n \"cents\": x");
    let failed = decode::<_, Payment>(DecodeLayer::json(), record).await.unwrap_err();
    let not_json = error::find::<NotJson>(&*failed).unwrap();
    assert_eq!((not_json.line(), not_json.column()), (2, 11));
}

#[test]
fn service_is_ready_only_if_the_inner_one_is() {
    let (inner, mut handle) = tower_test::mock::pair::<Request<Bytes>, ()>();
    handle.allow(0);
    let mut service = DecodeLayer::<_, Record>::bytes().layer(inner);
    assert_pending!(task::spawn(service.ready()).poll());
    handle.allow(1);
    assert_ready_ok!(task::spawn(service.ready()).poll());
}

#[tokio::test]
async fn null_payload_is_error_unless_tombstones_are_allowed() {
    for failed in [
        decode::<_, Payment>(DecodeLayer::json(), tombstone()).await.unwrap_err(),
        decode::<_, Bytes>(DecodeLayer::bytes(), tombstone()).await.unwrap_err(),
    ] {
        let failed = error::find::<DecodeError>(&*failed).unwrap();
        assert!(failed.is_null_payload());
        assert!(text(failed).contains("or_tombstone()"), "{}", text(failed));
    }
    let layer = DecodeLayer::json::<Payment>().or_tombstone();
    assert_eq!(decode::<_, Option<Payment>>(layer, tombstone()).await.unwrap(), None);
    let layer = DecodeLayer::json::<Payment>().or_tombstone();
    assert!(decode::<_, Option<Payment>>(layer, record("{")).await.is_err());
}

#[tokio::test]
async fn bytes_are_passed_unchanged() {
    let body: Bytes = decode(DecodeLayer::bytes(), record("")).await.unwrap();
    assert_eq!(body, Bytes::new());
    let body: Option<Bytes> = decode(DecodeLayer::raw(), tombstone()).await.unwrap();
    assert_eq!(body, None);
    let body: Option<Bytes> = decode(DecodeLayer::raw(), record("x")).await.unwrap();
    assert_eq!(body.unwrap(), "x");
}

#[tokio::test]
async fn custom_decoder_sees_whole_record() {
    let layer = DecodeLayer::with(|record: &Record| {
        std::str::from_utf8(record.payload().map_or(&[], |payload| payload)).map(str::len)
    });
    assert_eq!(decode::<_, usize>(layer, record("four")).await.unwrap(), 4);
    let layer = DecodeLayer::with(|_: &Record| Err::<(), _>("no schema"));
    let failed = decode::<_, ()>(layer, record("x")).await.unwrap_err();
    assert_eq!(text(&*failed), "cannot decode payments/3@42: no schema");
}

#[tokio::test]
async fn decoding_keeps_request_extensions() {
    let mut request = Request::from(record(r#"{"cents":100}"#));
    request.extensions_mut().insert(7_u8);
    let service =
        ServiceBuilder::new().layer(DecodeLayer::json()).service_fn(async |r: Request<Payment>| {
            Ok::<_, BoxError>((r.body().cents, r.extensions().get().copied()))
        });
    let answer: (u64, Option<u8>) = service.oneshot(request).await.unwrap();
    assert_eq!(answer, (100, Some(7)));
}

#[tokio::test]
async fn decoder_panic_is_error_of_its_record() {
    let layer = DecodeLayer::with(|record: &Record| -> Result<(), BoxError> {
        panic!("on {}", record.coordinates())
    });
    let failed = decode::<_, ()>(layer, record("x")).await.unwrap_err();
    assert_eq!(text(&*failed), "cannot decode payments/3@42: the decoder panicked");
}
