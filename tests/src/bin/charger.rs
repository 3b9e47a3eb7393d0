//! A consumer process for tests that kill it: charges each record, whose payload is the id of a payment,
//! by a `POST` to a payment provider. Arguments: brokers, group, topic, Redis URL, address of the provider,
//! `derived` or `token` (what is sent as `Idempotency-Key`, a derived key or the fencing token), the order
//! (`partition`, `key` or `none`), the maximum number of attempts, and the TTL of a lock in seconds.

use std::net::SocketAddr;
use std::time::Duration;

use campanile::prelude::*;
use campanile::{Consumer, IdempotencyConfig, ProcessingOrder, Request, error, handler};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::ServiceBuilder;

#[derive(Clone, Copy)]
struct Provider {
    address: SocketAddr,
    has_derived_keys: bool,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Result<[String; 9], _> = arguments.try_into();
    let [brokers, group, topic, redis, provider, key, order, attempts, ttl] =
        arguments.map_err(|given| format!("expected nine arguments, got {given:?}"))?;
    let provider = Provider { address: provider.parse()?, has_derived_keys: key == "derived" };
    let config = IdempotencyConfig::new("charges")
        .with_lock_ttl(Duration::from_secs(ttl.parse()?))
        .with_max_attempts(attempts.parse()?);
    let by_payload = key::from_fn(|request: &Request| request.record().payload().cloned());
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::raw())
        .layer(IdempotencyLayer::new(RedisStore::connect(redis).await?, config, by_payload)?)
        .service(handler(provider, charge));
    let consumer = ConsumerConfig::new(brokers, group).set("auto.offset.reset", "earliest");
    Consumer::new(consumer)?
        .subscribe([topic])
        .with_order(match &*order {
            "partition" => ProcessingOrder::by_partition(),
            "key" => ProcessingOrder::by_key(),
            "none" => ProcessingOrder::unordered(),
            _ => return Err(format!("unknown order {order}").into()),
        })
        // Some of many payments are at each point of their charge when the process is killed.
        .with_max_in_flight(32)
        .serve(service)
        .with_shutdown_signals()
        .await?;
    Ok(())
}

async fn charge(provider: Provider, request: Request) -> Result<(), BoxError> {
    let Provider { address, has_derived_keys } = provider;
    let lock = request.lock()?;
    let payment = lock.key().to_text();
    let key = if has_derived_keys {
        lock.derive("charge")?
    } else {
        format!("{payment}-{}", lock.token().get())
    };
    lock.check()?;
    let post = format!(
        "POST /charges HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         idempotency-key: {key}\r\ncontent-length: {}\r\n\r\n{payment}",
        payment.len()
    );
    let response = send(address, &post).await.map_err(error::unavailable)?;
    if response.starts_with("HTTP/1.1 201") {
        Ok(())
    } else if response.starts_with("HTTP/1.1 503") {
        Err(error::unavailable(response).into())
    } else {
        Err(format!("the provider answered {response:?}").into())
    }
}

async fn send(address: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(address).await?;
    connection.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    connection.read_to_string(&mut response).await?;
    Ok(response)
}
