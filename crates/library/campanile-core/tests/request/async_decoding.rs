//! Asynchronous decoders.

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

type MockService = mock::Mock<Request<u32>, &'static str>;
type MockHandle = mock::Handle<Request<u32>, &'static str>;

/// Wraps a mock service that allows one request in the layer.
fn mock_service<D: AsyncDecode<Body = u32> + Clone>(
    layer: AsyncDecodeLayer<D>,
) -> (impl Service<Record, Response = &'static str, Error = BoxError>, MockHandle) {
    let (inner, mut handle): (MockService, MockHandle) = mock::pair();
    handle.allow(1);
    let mut service = layer.layer(inner);
    assert_ready_ok!(task::spawn(service.ready()).poll());
    (service, handle)
}

fn record() -> Record {
    Record::builder("payments", 3, 42).payload("7").build()
}

fn text(error: &BoxError) -> String {
    let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    format!("{error}{source}")
}

#[test]
fn inner_service_is_called_only_after_decoding() {
    let (sender, receiver) = oneshot::channel::<u32>();
    let receiver = Arc::new(std::sync::Mutex::new(Some(receiver)));
    let layer = DecodeLayer::with_async(move |record: Record| {
        let receiver = receiver.lock().unwrap().take().unwrap();
        async move {
            let digits = std::str::from_utf8(record.payload().unwrap())?.parse::<u32>()?;
            Ok::<_, BoxError>(digits * receiver.await?)
        }
    });
    let (mut service, mut handle) = mock_service(layer);
    let mut call = task::spawn(service.call(record()));
    assert_pending!(call.poll());
    assert_pending!(handle.poll_request());
    sender.send(6).unwrap();
    assert!(call.is_woken());
    assert_pending!(call.poll());
    let request = assert_ready!(handle.poll_request());
    let (request, answer) = request.unwrap();
    assert_eq!((*request.body(), request.record().offset()), (42, 42));
    answer.send_response("done");
    assert_eq!(assert_ready_ok!(call.poll()), "done");
}

#[test]
fn async_decode_error_equals_sync_decode_error() {
    let refuse = |record: &Record| match record.payload() {
        Some(_) => Err::<u32, _>("no schema"),
        None => Err("nothing"),
    };
    let async_layer = DecodeLayer::with_async(move |record: Record| async move { refuse(&record) });
    let sync_layer = DecodeLayer::with(refuse);
    for record in [record(), Record::builder("payments", 3, 43).build()] {
        let (mut service, _handle) = mock_service(async_layer.clone());
        let failed = assert_ready_err!(task::spawn(service.call(record.clone())).poll());
        let inner = tower::service_fn(async |_: Request<u32>| Ok::<_, BoxError>("done"));
        let mut service = sync_layer.layer(inner);
        let expected = assert_ready_err!(task::spawn(service.call(record.clone())).poll());
        assert_eq!(text(&failed), text(&expected));
        let failed = error::find::<DecodeError>(&*failed).unwrap();
        assert_eq!(failed.coordinates(), record.coordinates());
        assert_eq!(failed.is_null_payload(), record.payload().is_none());
    }
}

/// A decoder with a named type and a named future.
#[derive(Clone)]
struct PendingDecoder(Arc<()>);

impl AsyncDecode for PendingDecoder {
    type Body = u32;
    type Error = BoxError;
    type Future = PendingDecode;

    fn decode(&self, _: Record) -> Self::Future {
        PendingDecode { _held: self.0.clone(), never: pending() }
    }
}

/// Never completes. Its `Arc` shows whether the future is still alive.
struct PendingDecode {
    _held: Arc<()>,
    never: Pending<Result<u32, BoxError>>,
}

impl Future for PendingDecode {
    type Output = Result<u32, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.never).poll(cx)
    }
}

#[test]
fn dropped_request_drops_decoder_and_releases_permit() {
    let held = Arc::new(());
    let (inner, mut handle): (MockService, MockHandle) = mock::pair();
    handle.allow(u64::MAX);
    let limited = ServiceBuilder::new().concurrency_limit(1).service(inner);
    let mut service = AsyncDecodeLayer::new(PendingDecoder(held.clone())).layer(limited);
    for _ in 0..3 {
        assert_ready_ok!(task::spawn(service.ready()).poll());
        let mut call = task::spawn(service.call(record()));
        assert_pending!(call.poll());
        assert_eq!(Arc::strong_count(&held), 3, "of the decoder, its future and this test");
        assert_pending!(task::spawn(service.ready()).poll());
        drop(call);
        assert_eq!(Arc::strong_count(&held), 2);
    }
    assert_pending!(handle.poll_request());
}

#[test]
fn panic_in_call_or_poll_is_error_of_its_record() {
    let in_call =
        DecodeLayer::with_async(|_: Record| -> Ready<Result<u32, BoxError>> { panic!("at once") });
    let in_poll = DecodeLayer::with_async(|_: Record| async {
        ready(()).await;
        if true {
            panic!("later");
        }
        Ok::<u32, BoxError>(7)
    });
    let panicked = |error: BoxError| {
        assert_eq!(text(&error), "cannot decode payments/3@42: the decoder panicked");
    };
    let (mut service, _handle) = mock_service(in_call);
    panicked(assert_ready_err!(task::spawn(service.call(record())).poll()));
    let (mut service, _handle) = mock_service(in_poll);
    panicked(assert_ready_err!(task::spawn(service.call(record())).poll()));
}

#[tokio::test]
async fn async_decoding_keeps_request_extensions() {
    let mut request = Request::from(record());
    request.extensions_mut().insert(7_u8);
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::with_async(async |_: Record| Ok::<_, BoxError>(1_u32)))
        .service_fn(async |r: Request<u32>| Ok::<_, BoxError>(r.extensions().get().copied()));
    assert_eq!(service.oneshot(request).await.unwrap(), Some(7_u8));
}
