//! The metrics of the stores, on real servers.

use std::sync::Arc;
use std::time::Duration;

use campanile::postgres::{Inbox, Transaction, migrate};
use campanile::store::{Command, Grant, Operation, Owner, Reply, Retention, Store, StoreKey};
use campanile::{
    BoxError, FencingToken, IdempotencyKey, Output, PgConfig, PgStore, RedisConfig, RedisStore,
};
use campanile_test::{PgServer, RedisServer};
use tokio::sync::{Semaphore, oneshot};
use tower::service_fn;

use crate::scrape::{Scrape, TIMEOUT, recorder};

#[tokio::test]
async fn outbox_shows_its_messages_until_they_are_published() {
    let postgres = PgServer::start().unwrap();
    migrate(postgres.url()).await.unwrap();
    let inbox = Inbox::new(&PgStore::connect(postgres.url()).await.unwrap()).unwrap();
    let publish = async |transaction: Transaction| {
        transaction.publish(Output::to("bills").key("a").payload("1")).await?;
        transaction.publish(Output::to("bills").key("a").payload("2")).await
    };
    inbox.runner("payments").unwrap().run("payment-1", publish).await.unwrap();

    let recorder = recorder();
    let scrape = Scrape(recorder.handle());
    let _recording = metrics::set_default_local_recorder(&recorder);
    let gate = Arc::new(Semaphore::new(0));
    let permits = gate.clone();
    let publisher = service_fn(move |_: Output| {
        let permits = permits.clone();
        async move {
            permits.acquire().await?.forget();
            Ok::<_, BoxError>(())
        }
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let relay = tokio::spawn(inbox.relay(publisher, async { drop(stopped.await) }));
    scrape.reaches("campanile_outbox_messages", &[], 2.0).await;
    assert!(scrape.value("campanile_outbox_oldest_age_seconds", &[]) > 0.0);
    scrape.assert("campanile_outbox_leader", &[], 1.0);
    gate.add_permits(2);
    drop(stop);
    relay.await.unwrap();
    scrape.assert("campanile_outbox_messages", &[], 0.0);
    scrape.assert("campanile_outbox_oldest_age_seconds", &[], 0.0);
    scrape.assert("campanile_outbox_leader", &[], 0.0);
}

#[tokio::test]
async fn shortfalls_of_redis_are_counted() {
    let server = RedisServer::start().unwrap();
    let recorder = recorder();
    let scrape = Scrape(recorder.handle());
    let _recording = metrics::set_default_local_recorder(&recorder);
    // There is no replica.
    let config = RedisConfig::new(server.url()).with_command_timeout(TIMEOUT);
    let config = config.with_wait(1, Duration::from_millis(50));
    let store = RedisStore::connect(config).await.unwrap();
    complete(&store, "a").await;
    scrape.assert("campanile_redis_shortfalls_total", &[], 1.0);
}

#[tokio::test]
async fn data_losses_of_redis_are_counted() {
    // Keeps nothing on disk.
    let mut server = RedisServer::start().unwrap();
    let recorder = recorder();
    let scrape = Scrape(recorder.handle());
    let _recording = metrics::set_default_local_recorder(&recorder);
    let config =
        RedisConfig::new(server.url()).with_command_timeout(TIMEOUT).with_connect_timeout(TIMEOUT);
    let store = RedisStore::connect(config).await.unwrap();
    let assert = |completions, namespace| {
        for (loss, expected) in [("completions", completions), ("namespace", namespace)] {
            let labels = [("campanile_redis_loss", loss)];
            scrape.assert("campanile_redis_data_losses_total", &labels, expected);
        }
    };
    complete(&store, "a").await;
    server.cli(&["SAVE"]).unwrap();
    complete(&store, "b").await;
    assert(0.0, 0.0);
    server.restart().unwrap();
    complete(&store, "c").await;
    assert(1.0, 0.0);
    server.cli(&["FLUSHALL"]).unwrap();
    server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    complete(&store, "d").await;
    assert(1.0, 1.0);
}

#[tokio::test]
async fn unsafe_settings_of_redis_are_counted() {
    let server = RedisServer::builder().config("maxmemory", "100mb").start().unwrap();
    let recorder = recorder();
    let scrape = Scrape(recorder.handle());
    let _recording = metrics::set_default_local_recorder(&recorder);
    let config = RedisConfig::new(server.url()).with_command_timeout(TIMEOUT);
    let store = RedisStore::connect(config).await.unwrap();
    complete(&store, "a").await;
    scrape.assert("campanile_redis_unsafe_settings_total", &[], 0.0);
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]).unwrap();
    server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    complete(&store, "b").await;
    scrape.assert("campanile_redis_unsafe_settings_total", &[], 1.0);
}

#[tokio::test]
async fn unsafe_settings_of_postgres_are_counted() {
    let server = PgServer::start().unwrap();
    migrate(server.url()).await.unwrap();
    // Created before the recorder is installed.
    let config = PgConfig::new(server.url()).with_command_timeout(TIMEOUT);
    let recorder = recorder();
    let scrape = Scrape(recorder.handle());
    let _recording = metrics::set_default_local_recorder(&recorder);
    let store = PgStore::connect(config).await.unwrap();
    scrape.assert("campanile_postgres_unsafe_settings_total", &[], 0.0);
    server.psql("ALTER ROLE postgres SET synchronous_commit = off").unwrap();
    complete(&store, "a").await;
    scrape.assert("campanile_postgres_unsafe_settings_total", &[], 1.0);
}

/// Completes a key that was never acquired.
async fn complete(store: &impl Store, key: &'static str) {
    let grant = Grant { token: FencingToken::new(1).unwrap(), owner: Owner::new(1).unwrap() };
    let operation =
        Operation::Complete { grant, attempt: 1, fingerprint: None, reply: None, details: None };
    let key = IdempotencyKey::new(key).unwrap();
    let key = StoreKey::new("payments".try_into().unwrap(), &key);
    let command = Command { key, operation, retention: Retention::default() };
    assert_eq!(store.apply(command).await.unwrap().reply, Reply::Completed);
}
