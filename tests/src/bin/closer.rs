//! A process with several consumers, each of which ends at its moment: by a graceful or an immediate
//! shutdown, or because its future is dropped. Then the process ends, even if consumers are still leaving
//! their groups. Arguments: brokers, topic, `group.protocol`, then `shutdown=MS`, `now=MS` or `drop=MS` for
//! each consumer.

use std::time::Duration;

use campanile::Consumer;
use campanile::prelude::*;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The members of each group.
const MEMBERS: usize = 4;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [brokers, topic, protocol, consumers @ ..] = &arguments[..] else {
        return Err(format!("expected brokers, topic and protocol, got {arguments:?}").into());
    };
    let mut closing = JoinSet::new();
    for (n, end) in consumers.iter().enumerate() {
        let (how, millis) = end.split_once('=').ok_or("consumers have the form HOW=MS")?;
        let (how, after) = (how.to_owned(), Duration::from_millis(millis.parse()?));
        let group = format!("closer-{}-{}", std::process::id(), n / MEMBERS);
        let mut config = ConsumerConfig::new(brokers, group)
            .set("auto.offset.reset", "earliest")
            .set("group.protocol", protocol);
        if protocol == "classic" {
            config = config.set("session.timeout.ms", "6000");
        }
        // One member of each group is static.
        if n % MEMBERS == 0 {
            config = config.set("group.instance.id", format!("member-{n}"));
        }
        let service = tower::service_fn(async |_: Record| {
            sleep(Duration::from_millis(1)).await;
            Ok::<_, BoxError>(())
        });
        let serve = Consumer::new(config)?
            .subscribe([topic])
            .with_drain_timeout(Duration::from_millis(100))
            .serve(service);
        let handle = serve.handle();
        closing.spawn(async move {
            if how == "drop" {
                return timeout(after, serve.into_future()).await.is_ok();
            }
            let serving = tokio::spawn(serve.into_future());
            sleep(after).await;
            match &*how {
                "now" => handle.shutdown_now(),
                _ => handle.shutdown(),
            }
            serving.await.is_ok_and(|ended| ended.is_ok())
        });
    }
    let ended = closing.join_all().await;
    println!(
        "{} consumers closed, {} in order",
        ended.len(),
        ended.iter().filter(|ok| **ok).count()
    );
    Ok(())
}
