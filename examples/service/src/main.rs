//! A service as it is deployed: it books payments from a Kafka topic in Postgres, each payment once.
//!
//! Its locks and entries are in Redis, as for handlers that also call other systems. A handler that
//! writes only to Postgres can commit its entry with its writes instead, and needs no Redis: see
//! the example `ledger`.
//!
//! * `settings.rs` reads the settings from environment variables, except those of the consumer, which
//!   `ConsumerConfig::from_env` reads.
//! * `ledger.rs` is the state that handlers share.
//! * `metrics.rs` serves the metrics for Prometheus.
//! * `schema.sql` creates the table.
//! * `Dockerfile` builds the image, with the command `campanile`, and `kubernetes.yaml` deploys it.
//! * `tests/service.rs` starts the program with its servers, and stops it with SIGTERM.

mod ledger;
mod metrics;
mod settings;

use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use campanile::health::HealthService;
use campanile::prelude::*;
use campanile::{Consumer, DeadLetter, Request, error, handler};
use serde::Deserialize;
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

use crate::ledger::Ledger;
use crate::settings::{KAFKA_PREFIX, Settings};

#[derive(Deserialize)]
struct Payment {
    id: String,
    account: String,
    cents: i64,
}

/// The handler: books a payment.
async fn book(ledger: Ledger, request: Request<Payment>) -> Result<(), BoxError> {
    let Payment { id, account, cents } = request.body();
    let lock = request.lock()?;
    ledger.book(id, account, *cents, lock.token()).await
}

fn log_duplicate(outcome: Outcome<()>) {
    if outcome.is_duplicate() {
        tracing::info!("the payment is booked already");
    }
}

async fn run() -> Result<(), BoxError> {
    let settings = Settings::from_env()?;
    let kafka = ConsumerConfig::from_env(KAFKA_PREFIX)?;
    // `Consumer::new` fails without a group
    let namespace = format!("{}.{}", kafka.get("group.id").unwrap_or_default(), settings.topic);
    // before what has metrics is created
    metrics::serve(settings.metrics_address)?;
    // created before anything is connected, so that invalid settings are reported first
    let consumer = Consumer::new(kafka)?
        .subscribe([settings.topic])
        // records that no attempt can process; too many of them pause the consumer
        .on_give_up(DeadLetter::topic(settings.dead_letter_topic))
        // events of a record name its topic, partition and offset
        .with_span_level(Level::INFO);

    let ledger = Ledger::connect(&settings.database_url).await?;
    let store = RedisStore::connect(settings.redis_url.as_str()).await?;
    let config = IdempotencyConfig::new(namespace).with_lock_ttl(settings.lock_ttl);

    let service = ServiceBuilder::new()
        // sees the outcome of each record, in the record's span
        .map_response(log_duplicate)
        // records that fail to decode never acquire a lock
        .layer(DecodeLayer::json())
        // one lock for each payment, renewed while the handler runs
        .layer(IdempotencyLayer::new(store, config, key::field(|p: &Payment| &p.id))?)
        // a record waits for a connection before it acquires its lock
        .concurrency_limit(Ledger::CONNECTIONS)
        // a handler that takes longer counts as a failed attempt
        .timeout(Duration::from_secs(5))
        .service(handler(ledger, book));
    let serve = consumer.serve(service).with_shutdown_signals();

    // `/health/live` and `/health/ready`. Until Redis and Postgres are connected, nothing listens.
    let probes = Router::new().nest_service("/health", HealthService::new(serve.handle()));
    let listener = TcpListener::bind(settings.health_address).await?;
    tracing::info!(address = %listener.local_addr()?, "serving probes");
    tokio::spawn(axum::serve(listener, probes).into_future());

    let summary = serve.await?;
    tracing::info!(
        received = summary.received,
        processed = summary.processed,
        dead_lettered = summary.dead_lettered,
        retried = summary.retried,
        left = summary.unfinished,
        "stopped"
    );
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    // `RUST_LOG` sets another level. This comes before `Consumer::new`, which configures librdkafka's
    // log by the level.
    let info = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into());
    tracing_subscriber::fmt().json().with_env_filter(info.from_env_lossy()).init();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The cause of many errors is in their sources.
            let chain: Vec<String> = error::sources(&*error).map(ToString::to_string).collect();
            tracing::error!(error = chain.join(": "), "the service ends");
            ExitCode::FAILURE
        }
    }
}
