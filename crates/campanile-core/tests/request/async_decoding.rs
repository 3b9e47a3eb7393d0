//! Decoders that wait.

use std::future::{Pending, Ready, pending, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use campanile_core::decode::{AsyncDecode, AsyncDecodeLayer};
use campanile_core::{BoxError, DecodeError, DecodeLayer, Record, Request, error};
use tokio::sync::oneshot;
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_test::mock;

type Inner = mock::Mock<Request<u32>, &'static str>;
type Stage = mock::Handle<Request<u32>, &'static str>;

/// The layer around an inner service that the test plays, and that takes one request.
fn staged<D: AsyncDecode<Body = u32> + Clone>(
    layer: AsyncDecodeLayer<D>,
) -> (impl Service<Record, Response = &'static str, Error = BoxError>, Stage) {
    let (inner, mut stage): (Inner, Stage) = mock::pair();
    stage.allow(1);
    let mut service = layer.layer(inner);
    assert_ready_ok!(task::spawn(service.ready()).poll());
    (service, stage)
}

fn record() -> Record {
    Record::builder("payments", 3, 42).payload("7").build()
}

fn text(error: &BoxError) -> String {
    let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    format!("{error}{source}")
}

#[test]
fn the_inner_service_is_called_when_the_body_is_there_and_not_before() {
    let (schema, fetched) = oneshot::channel::<u32>();
    let fetched = Arc::new(std::sync::Mutex::new(Some(fetched)));
    let layer = DecodeLayer::with_async(move |record: Record| {
        let fetched = fetched.lock().unwrap().take().unwrap();
        async move {
            let digits = std::str::from_utf8(record.payload().unwrap())?.parse::<u32>()?;
            Ok::<_, BoxError>(digits * fetched.await?)
        }
    });
    let (mut service, mut stage) = staged(layer);
    let mut call = task::spawn(service.call(record()));
    assert_pending!(call.poll());
    assert_pending!(stage.poll_request());
    schema.send(6).unwrap();
    assert!(call.is_woken());
    assert_pending!(call.poll());
    let request = assert_ready!(stage.poll_request());
    let (request, answer) = request.unwrap();
    assert_eq!((*request.body(), request.record().offset()), (42, 42));
    answer.send_response("done");
    assert_eq!(assert_ready_ok!(call.poll()), "done");
}

#[test]
fn what_does_not_decode_is_the_same_error_as_of_a_decoder_that_does_not_wait() {
    let refuse = |record: &Record| match record.payload() {
        Some(_) => Err::<u32, _>("no schema"),
        None => Err("nothing"),
    };
    let waits = DecodeLayer::with_async(move |record: Record| async move { refuse(&record) });
    let does_not = DecodeLayer::with(refuse);
    for record in [record(), Record::builder("payments", 3, 43).build()] {
        let (mut service, _stage) = staged(waits.clone());
        let failed = assert_ready_err!(task::spawn(service.call(record.clone())).poll());
        let inner = tower::service_fn(async |_: Request<u32>| Ok::<_, BoxError>("done"));
        let mut service = does_not.layer(inner);
        let expected = assert_ready_err!(task::spawn(service.call(record.clone())).poll());
        assert_eq!(text(&failed), text(&expected));
        let failed = error::find::<DecodeError>(&*failed).unwrap();
        assert_eq!(failed.coordinates(), record.coordinates());
        assert_eq!(failed.is_null_payload(), record.payload().is_none());
    }
}

/// A decoder of a type of its own.
#[derive(Clone)]
struct Never(Arc<()>);

impl AsyncDecode for Never {
    type Body = u32;
    type Error = BoxError;
    type Future = Holding;

    fn decode(&self, _: Record) -> Self::Future {
        Holding { _held: self.0.clone(), never: pending() }
    }
}

/// Never ends, and shows whether it is there.
struct Holding {
    _held: Arc<()>,
    never: Pending<Result<u32, BoxError>>,
}

impl Future for Holding {
    type Output = Result<u32, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.never).poll(cx)
    }
}

#[test]
fn a_request_that_is_dropped_drops_its_decoding_and_gives_readiness_back() {
    let held = Arc::new(());
    let (inner, mut stage): (Inner, Stage) = mock::pair();
    stage.allow(u64::MAX);
    let limited = ServiceBuilder::new().concurrency_limit(1).service(inner);
    let mut service = AsyncDecodeLayer::new(Never(held.clone())).layer(limited);
    for _ in 0..3 {
        assert_ready_ok!(task::spawn(service.ready()).poll());
        let mut call = task::spawn(service.call(record()));
        assert_pending!(call.poll());
        assert_eq!(Arc::strong_count(&held), 3, "the decoder's, the future's, and this");
        assert_pending!(task::spawn(service.ready()).poll());
        drop(call);
        assert_eq!(Arc::strong_count(&held), 2);
    }
    assert_pending!(stage.poll_request());
}

#[test]
fn a_decoder_that_panics_at_once_or_later_is_an_error_of_its_record() {
    let at_once =
        DecodeLayer::with_async(|_: Record| -> Ready<Result<u32, BoxError>> { panic!("at once") });
    let later = DecodeLayer::with_async(|_: Record| async {
        ready(()).await;
        if true {
            panic!("later");
        }
        Ok::<u32, BoxError>(7)
    });
    let panicked = |error: BoxError| {
        assert_eq!(text(&error), "cannot decode payments/3@42: the decoder panicked");
    };
    let (mut service, _stage) = staged(at_once);
    panicked(assert_ready_err!(task::spawn(service.call(record())).poll()));
    let (mut service, _stage) = staged(later);
    panicked(assert_ready_err!(task::spawn(service.call(record())).poll()));
}

#[tokio::test]
async fn a_request_keeps_its_extensions_while_its_body_is_decoded() {
    let mut request = Request::from(record());
    request.extensions_mut().insert(7_u8);
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::with_async(async |_: Record| Ok::<_, BoxError>(1_u32)))
        .service_fn(async |r: Request<u32>| Ok::<_, BoxError>(r.extensions().get().copied()));
    assert_eq!(service.oneshot(request).await.unwrap(), Some(7_u8));
}
