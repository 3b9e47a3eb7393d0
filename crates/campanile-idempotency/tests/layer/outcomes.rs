//! What a request comes to when nothing goes wrong.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use campanile_core::{BoxError, Outcome, Record, Request, State, Unguarded, error};
use campanile_idempotency::policy::{OnGivenUp, OnMissingKey};
use campanile_idempotency::{ReplyCodec, StoreErrorKind, reply};
use campanile_test::faults::Fault;
use tower::{Layer, service_fn};

use crate::world::{Guarding, World, refusal, request};

#[tokio::test(start_paused = true)]
async fn a_request_is_processed_once_and_its_duplicate_is_answered() {
    let world = World::new();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let service = world.layer().layer(service_fn(move |_: Request<()>| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, BoxError>("charged") }
    }));
    assert_eq!(service.run("p-1").await.unwrap(), Outcome::Processed("charged"));
    let Outcome::Duplicate(duplicate) = service.run("p-1").await.unwrap() else {
        panic!("a duplicate");
    };
    assert_eq!(duplicate.attempts, 1);
    assert_eq!(duplicate.reply, None, "no reply is kept unless it is asked for");
    assert_eq!(Some(duplicate.completed_at), world.entry("p-1").map(|entry| entry.at()));
    assert_eq!(service.run("p-2").await.unwrap(), Outcome::Processed("charged"));
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn the_handler_sees_its_lock() {
    let world = World::new();
    let service = world.layer().layer(service_fn(async |request: Request<()>| {
        let lock = request.lock().unwrap();
        assert_eq!(lock.key().as_bytes(), b"p-1");
        assert!(lock.check().is_ok());
        Ok::<_, BoxError>((lock.token(), lock.attempt()))
    }));
    let (token, attempt) = service.run("p-1").await.unwrap().into_reply().unwrap();
    assert_eq!((Some(token), attempt), (world.entry("p-1").map(|entry| entry.token()), 1));
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_is_answered_with_the_reply_as_json() {
    let world = World::new();
    let layer = world.layer().with_reply(reply::json());
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
async fn a_duplicate_is_answered_with_the_replys_bytes() {
    let world = World::new();
    let layer = world.layer().with_reply(reply::bytes());
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
async fn a_reply_above_the_limit_is_not_kept_and_one_at_the_limit_is() {
    let world = World::new();
    let layer = world.layer().with_max_reply_bytes(4).with_reply(reply::bytes());
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

/// Fails at what it is told to.
struct Faulty {
    encode: fn() -> Result<Option<Bytes>, BoxError>,
    decode: fn() -> Result<Option<String>, BoxError>,
}

impl ReplyCodec<String> for Faulty {
    fn encode(&self, _: &String) -> Result<Option<Bytes>, BoxError> {
        (self.encode)()
    }

    fn decode(&self, _: Bytes) -> Result<Option<String>, BoxError> {
        (self.decode)()
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_cannot_be_encoded_or_decoded_does_not_fail_the_request() {
    let kept = || Ok(Some(Bytes::from_static(b"kept")));
    let codecs = [
        Faulty { encode: || Err("does not encode".into()), decode: || unreachable!() },
        Faulty { encode: || panic!("encoding"), decode: || unreachable!() },
        Faulty { encode: || Ok(None), decode: || unreachable!() },
        Faulty { encode: kept, decode: || Err("does not decode".into()) },
        Faulty { encode: kept, decode: || panic!("decoding") },
        Faulty { encode: kept, decode: || Ok(None) },
    ];
    for codec in codecs {
        let world = World::new();
        let service = world
            .layer()
            .with_reply(codec)
            .layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>("receipt".to_owned())));
        let first = service.run("p-1").await.unwrap();
        assert_eq!(first, Outcome::Processed("receipt".into()));
        assert_eq!(world.state("p-1"), Some(State::Completed));
        let again = service.run("p-1").await.unwrap();
        assert!(again.is_duplicate());
        assert_eq!(again.into_reply(), None);
        world.assert_quiet().await;
    }
}

/// Lets nothing through.
struct Picky;

impl ReplyCodec<String> for Picky {
    fn check(&self, reply: &String, record: Option<&Record>) -> Result<(), BoxError> {
        Err(format!("{reply} is no answer to {record:?}").into())
    }

    fn encode(&self, _: &String) -> Result<Option<Bytes>, BoxError> {
        unreachable!()
    }

    fn decode(&self, _: Bytes) -> Result<Option<String>, BoxError> {
        unreachable!()
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_its_codec_does_not_let_through_fails_the_attempt_and_completes_nothing() {
    let world = World::new();
    let service = world
        .layer()
        .with_reply(Picky)
        .layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>("receipt".to_owned())));
    let error = service.run("p-1").await.unwrap_err();
    let is_told =
        |error: &(dyn Error + 'static)| error.to_string().contains("to Some(Record(payments/0@");
    assert!(error::sources(&*error).any(is_told), "{error:?}");
    assert_eq!(world.state("p-1"), Some(State::Retrying));
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_given_up_is_parked() {
    let world = World::new();
    let layer = world.layer().with_given_up(OnGivenUp::Reject).with_max_attempts(1).unwrap();
    let service =
        layer.layer(service_fn(async |_: Request<()>| Err::<(), BoxError>("declined".into())));
    for _ in 0..2 {
        let Outcome::Parked(parked) = service.run("p-1").await.unwrap() else {
            panic!("parked");
        };
        assert_eq!((parked.attempts, parked.error.as_deref()), (1, Some("declined")));
    }
    assert_eq!(world.state("p-1"), Some(State::Failed));
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_key_passes_unguarded_if_that_is_chosen() {
    let world = World::new();
    let layer = world.layer().with_missing_key(OnMissingKey::PassThrough);
    let service = layer.layer(service_fn(async |request: Request<()>| {
        Ok::<_, BoxError>(request.lock().is_none())
    }));
    for _ in 0..2 {
        let outcome = service.run("").await.unwrap();
        assert_eq!(outcome, Outcome::Unguarded(true, Unguarded::MissingKey));
    }
    assert_eq!(world.store.commands(), []);
}

#[tokio::test(start_paused = true)]
async fn a_request_runs_unguarded_without_the_store_if_the_predicate_lets_it() {
    let world = World::new();
    let layer = world.layer().with_fail_open_risking_duplicates(|key, error| {
        key.as_bytes() == b"harmless" && error.kind() == StoreErrorKind::Unavailable
    });
    let service = layer.layer(service_fn(async |request: Request<()>| {
        Ok::<_, BoxError>(request.lock().is_none())
    }));
    world.store.always(Fault::Refuse);
    let open = service.run("harmless").await.unwrap();
    assert_eq!(open, Outcome::Unguarded(true, Unguarded::StoreDown));
    let closed = service.run("harmful").await;
    assert!(matches!(refusal(&closed), campanile_idempotency::IdempotencyError::Store(_)));

    // Nothing was recorded, so it runs again when the store is back.
    world.store.heal();
    assert_eq!(service.run("harmless").await.unwrap(), Outcome::Processed(false));
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_may_have_been_granted_is_cancelled_when_the_request_runs_unguarded() {
    let world = World::new();
    let layer = world.layer().with_fail_open_risking_duplicates(|_, _| true);
    let (service, mut stage) = world.staged(layer);
    world.store.next_of("acquire", Fault::LoseReply);
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    world.assert_quiet().await;
    let entry = world.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 0));
    respond.send_response("done");
    assert!(matches!(call.await.unwrap().unwrap(), Outcome::Unguarded("done", _)));
}
