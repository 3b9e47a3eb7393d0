//! Handlers that take many records at a time.

use std::time::Duration;

use campanile_core::{BoxError, Record, Request, key};
use campanile_idempotency::{BatchLayer, IdempotencyLayer, MemoryStore};
use tower::{ServiceBuilder, ServiceExt};
use tracing::Instrument;

use crate::support::{Traces, links, position};

#[tokio::test(flavor = "current_thread")]
async fn batch_span_links_to_the_spans_of_its_records() {
    let traces = Traces::start();
    let layer = IdempotencyLayer::new(MemoryStore::new(), "orders", key::coordinates()).unwrap();
    let service = ServiceBuilder::new()
        .layer(layer)
        .layer(BatchLayer::new(2, Duration::from_secs(3600)).unwrap())
        .service_fn(async |batch: Vec<Request<()>>| {
            Ok::<_, BoxError>(batch.iter().map(|_| Ok::<_, BoxError>(())).collect::<Vec<_>>())
        });
    let call = |offset| {
        let request = Request::new(Record::builder("orders", 0, offset).build(), ());
        service.clone().oneshot(request).instrument(tracing::info_span!("record"))
    };
    let (first, second) = tokio::join!(call(0), call(1));
    first.unwrap();
    second.unwrap();
    let mut linked: Vec<_> = traces.spans("batch").iter().flat_map(links).collect();
    let mut handlers: Vec<_> =
        traces.spans("process").iter().map(|span| position(&span.span_context)).collect();
    linked.sort();
    handlers.sort();
    assert_eq!((linked.len(), linked), (2, handlers));
}
