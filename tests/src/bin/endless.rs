//! A consumer process with a handler that never finishes and a drain timeout of an hour. Arguments:
//! brokers, topic. Prints `begun` when the handler starts, `draining` on shutdown, and the summary
//! at the end.

use std::time::Duration;

use campanile::prelude::*;
use campanile::{Consumer, Request, consumer::ConsumerStage};
use tower::ServiceBuilder;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [brokers, topic] = &arguments[..] else {
        return Err(format!("expected two arguments, got {arguments:?}").into());
    };
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::raw())
        .layer(IdempotencyLayer::new(MemoryStore::new(), "endless", key::coordinates())?)
        .service_fn(async |_: Request| {
            println!("begun");
            std::future::pending::<Result<(), BoxError>>().await
        });
    let serve = Consumer::new(ConsumerConfig::new(brokers, "endless"))?
        .subscribe([topic])
        .with_drain_timeout(Duration::from_secs(3600))
        .serve(service)
        .with_shutdown_signals();
    let handle = serve.handle();
    tokio::spawn(async move {
        while handle.status().stage < ConsumerStage::Draining {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        println!("draining");
    });
    let summary = serve.await?;
    println!("{summary:?}");
    Ok(())
}
