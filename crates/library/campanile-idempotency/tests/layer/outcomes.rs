//! The outcome of a request when nothing goes wrong.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use campanile_core::{BoxError, Outcome, Record, Request, State, WithoutLock, error};
use campanile_idempotency::policy::{OnExhausted, OnMissingKey};
use campanile_idempotency::{ReplyCodec, StoreErrorKind, reply};
use campanile_test::faults::Fault;
use tower::{Layer, service_fn};

use crate::harness::{Harness, TestService, layer_error, request};

#[tokio::test(start_paused = true)]
async fn request_is_processed_once_and_duplicate_is_answered() {
    let harness = Harness::new();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let service = harness.layer().layer(service_fn(move |_: Request<()>| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, BoxError>("charged") }
    }));
    assert_eq!(service.run("p-1").await.unwrap(), Outcome::Processed("charged"));
    let Outcome::Duplicate(duplicate) = service.run("p-1").await.unwrap() else {
        panic!("expected a duplicate");
    };
    assert_eq!(duplicate.attempts, 1);
    assert_eq!(duplicate.reply, None, "no reply is stored by default");
    assert_eq!(Some(duplicate.completed_at), harness.entry("p-1").map(|entry| entry.at()));
    assert_eq!(service.run("p-2").await.unwrap(), Outcome::Processed("charged"));
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn handler_sees_its_lock() {
    let harness = Harness::new();
    let service = harness.layer().layer(service_fn(async |request: Request<()>| {
        let lock = request.lock().unwrap();
        assert_eq!(lock.key().as_bytes(), b"p-1");
        assert!(lock.check().is_ok());
        Ok::<_, BoxError>((lock.token(), lock.attempt()))
    }));
    let (token, attempt) = service.run("p-1").await.unwrap().into_reply().unwrap();
    assert_eq!((Some(token), attempt), (harness.entry("p-1").map(|entry| entry.token()), 1));
}

#[tokio::test(start_paused = true)]
async fn duplicate_gets_json_reply() {
    let harness = Harness::new();
    let layer = harness.layer().with_reply(reply::json());
    let receipts = AtomicUsize::new(0);
    let receipts = Arc::new(receipts);
    let service = layer.layer(service_fn(move |_: Request<()>| {
        let number = receipts.fetch_add(1, Ordering::Relaxed);
        async move { Ok::<_, BoxError>(format!("receipt {number}")) }
    }));
    let first = service.run("p-1").await.unwrap();
    let again = service.run("p-1").await.unwrap();
    assert!(again.is_duplicate());
    assert_eq!(again.into_reply(), first.into_reply());
}

#[tokio::test(start_paused = true)]
async fn duplicate_gets_reply_bytes() {
    let harness = Harness::new();
    let layer = harness.layer().with_reply(reply::bytes());
    for (id, receipt) in [("full", &b"\x00\xff"[..]), ("empty", b"")] {
        let receipt = Bytes::from_static(receipt);
        let kept = receipt.clone();
        let service = layer.layer(service_fn(move |_: Request<()>| {
            let receipt = receipt.clone();
            async move { Ok::<_, BoxError>(receipt) }
        }));
        service.run(id).await.unwrap();
        assert_eq!(service.run(id).await.unwrap().into_reply(), Some(kept));
    }
}

#[tokio::test(start_paused = true)]
async fn reply_is_kept_up_to_size_limit() {
    let harness = Harness::new();
    let layer =
        harness.layer_with(|config| config.with_max_reply_bytes(4)).with_reply(reply::bytes());
    let service = layer.layer(service_fn(async |request: Request<()>| {
        let length = request.record().headers().len();
        Ok::<_, BoxError>(Bytes::from(vec![7; 3 + length]))
    }));
    service.run("at").await.unwrap();
    assert_eq!(service.run("at").await.unwrap().into_reply().unwrap().len(), 4);

    let service = layer
        .layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(Bytes::from_static(b"12345"))));
    service.run("above").await.unwrap();
    let again = service.run("above").await.unwrap();
    assert!(again.is_duplicate());
    assert_eq!(again.into_reply(), None);
}

/// A codec with configurable results.
struct FaultyCodec {
    encode: fn() -> Result<Option<Bytes>, BoxError>,
    decode: fn() -> Result<Option<String>, BoxError>,
}

impl ReplyCodec<String> for FaultyCodec {
    fn encode(&self, _: &String) -> Result<Option<Bytes>, BoxError> {
        (self.encode)()
    }

    fn decode(&self, _: Bytes) -> Result<Option<String>, BoxError> {
        (self.decode)()
    }
}

#[tokio::test(start_paused = true)]
async fn reply_codec_error_does_not_fail_request() {
    let kept = || Ok(Some(Bytes::from_static(b"kept")));
    let codecs = [
        FaultyCodec { encode: || Err("does not encode".into()), decode: || unreachable!() },
        FaultyCodec { encode: || panic!("encoding"), decode: || unreachable!() },
        FaultyCodec { encode: || Ok(None), decode: || unreachable!() },
        FaultyCodec { encode: kept, decode: || Err("does not decode".into()) },
        FaultyCodec { encode: kept, decode: || panic!("decoding") },
        FaultyCodec { encode: kept, decode: || Ok(None) },
    ];
    for codec in codecs {
        let harness = Harness::new();
        let service = harness
            .layer()
            .with_reply(codec)
            .layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>("receipt".to_owned())));
        let first = service.run("p-1").await.unwrap();
        assert_eq!(first, Outcome::Processed("receipt".into()));
        assert_eq!(harness.state("p-1"), Some(State::Completed));
        let again = service.run("p-1").await.unwrap();
        assert!(again.is_duplicate());
        assert_eq!(again.into_reply(), None);
        harness.assert_settled().await;
    }
}

/// A codec that rejects every reply.
struct RejectingCodec;

impl ReplyCodec<String> for RejectingCodec {
    fn check(&self, reply: &String, record: Option<&Record>) -> Result<(), BoxError> {
        Err(format!("{reply} is not a reply to {record:?}").into())
    }

    fn encode(&self, _: &String) -> Result<Option<Bytes>, BoxError> {
        unreachable!()
    }

    fn decode(&self, _: Bytes) -> Result<Option<String>, BoxError> {
        unreachable!()
    }
}

#[tokio::test(start_paused = true)]
async fn reply_rejected_by_codec_fails_attempt() {
    let harness = Harness::new();
    let service = harness
        .layer()
        .with_reply(RejectingCodec)
        .layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>("receipt".to_owned())));
    let error = service.run("p-1").await.unwrap_err();
    let is_reported =
        |error: &(dyn Error + 'static)| error.to_string().contains("to Some(Record(payments/0@");
    assert!(error::sources(&*error).any(is_reported), "{error:?}");
    assert_eq!(harness.state("p-1"), Some(State::Retrying));
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn given_up_key_is_answered_as_given_up() {
    let harness = Harness::new();
    let layer =
        harness.layer_with(|config| config.with_max_attempts(1)).on_exhausted(OnExhausted::GiveUp);
    let service =
        layer.layer(service_fn(async |_: Request<()>| Err::<(), BoxError>("declined".into())));
    for _ in 0..2 {
        let Outcome::GivenUp(given_up) = service.run("p-1").await.unwrap() else {
            panic!("expected the key to be given up");
        };
        assert_eq!((given_up.attempts, given_up.error.as_deref()), (1, Some("declined")));
    }
    assert_eq!(harness.state("p-1"), Some(State::Failed));
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn request_without_key_passes_unguarded_by_policy() {
    let harness = Harness::new();
    let layer = harness.layer().on_missing_key(OnMissingKey::PassThrough);
    let service = layer
        .layer(service_fn(async |request: Request<()>| Ok::<_, BoxError>(request.lock().is_err())));
    for _ in 0..2 {
        let outcome = service.run("").await.unwrap();
        assert_eq!(outcome, Outcome::WithoutLock(true, WithoutLock::MissingKey));
    }
    assert_eq!(harness.store.commands(), []);
}

#[tokio::test(start_paused = true)]
async fn request_without_store_runs_unguarded_if_predicate_allows() {
    let harness = Harness::new();
    let layer = harness.layer().with_fail_open_risking_duplicates(|key, error| {
        key.as_bytes() == b"harmless" && error.kind() == StoreErrorKind::Unavailable
    });
    let service = layer
        .layer(service_fn(async |request: Request<()>| Ok::<_, BoxError>(request.lock().is_err())));
    harness.store.inject_always(Fault::Refuse);
    let open = service.run("harmless").await.unwrap();
    assert_eq!(open, Outcome::WithoutLock(true, WithoutLock::StoreUnavailable));
    let closed = service.run("harmful").await;
    assert!(matches!(layer_error(&closed), campanile_idempotency::IdempotencyError::Store(_)));

    // Nothing was recorded, so the handler runs again once the store is available.
    harness.store.heal();
    assert_eq!(service.run("harmless").await.unwrap(), Outcome::Processed(false));
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn acquire_in_doubt_is_cancelled_if_request_runs_unguarded() {
    let harness = Harness::new();
    let layer = harness.layer().with_fail_open_risking_duplicates(|_, _| true);
    let (service, mut handle) = harness.mock_service(layer);
    harness.store.inject_next_of("acquire", Fault::LoseReply);
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    harness.assert_settled().await;
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 0));
    respond.send_response("done");
    assert!(matches!(call.await.unwrap().unwrap(), Outcome::WithoutLock("done", _)));
}
