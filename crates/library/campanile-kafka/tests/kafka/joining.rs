//! Members of a group that are shut down before they have joined the group.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use tokio::task::JoinSet;

use crate::real::{logging, start_with_proxy, topic};
use crate::support::{Log, Serving, consumer, messages, serve, until};

const PARTITIONS: i32 = 4;

/// How long a broker takes to answer a joining member: long enough for a shutdown to hit each step.
const BROKER_DELAY: Duration = Duration::from_millis(100);

/// Number of members that are shut down. Each runs for this much longer than the one before it.
const MEMBERS: u32 = 24;
const SHUTDOWN_INTERVAL: Duration = Duration::from_millis(50);

/// Number of members that join together: a busy machine needs too long for all of them.
const TOGETHER: u32 = 6;

fn start_member(config: &ClientConfig, topic: &str, log: &Log) -> Serving {
    serve(consumer(config.clone(), topic), logging(log))
}

/// Number of partitions that the member owns.
fn owned_partitions(member: &Serving) -> usize {
    member.handle().status().partitions.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_does_not_wait_for_members_shut_down_while_joining() {
    let servers = tokio::task::spawn_blocking(start_with_proxy).await.unwrap();
    let (kafka, proxy) = (Arc::new(servers.0), servers.1);
    proxy.delay(BROKER_DELAY / 2);
    for (topic, protocol) in [("classic", "classic"), ("newer", "consumer")] {
        let server = kafka.clone();
        let create = move || server.create_topic(topic, PARTITIONS, &[]).unwrap();
        tokio::task::spawn_blocking(create).await.unwrap();
        let mut config = kafka.consumer_config(topic);
        config.set("group.protocol", protocol);
        // Longer than anything in this test takes.
        match protocol {
            "classic" => config.set("session.timeout.ms", "120000"),
            _ => config.remove("session.timeout.ms").remove("heartbeat.interval.ms"),
        };
        let mut slow = config.clone();
        slow.set("bootstrap.servers", proxy.addr().to_string());

        let log = Log::default();
        let member = start_member(&config, topic, &log);
        until("the member owns all partitions", || {
            owned_partitions(&member) == PARTITIONS as usize
        })
        .await;
        for first in (0..MEMBERS).step_by(TOGETHER as usize) {
            let mut leaving = JoinSet::new();
            for number in first..first + TOGETHER {
                let member = start_member(&slow, topic, &Log::default());
                leaving.spawn(async move {
                    tokio::time::sleep(SHUTDOWN_INTERVAL * number).await;
                    member.stop().await
                });
            }
            for ended in leaving.join_all().await {
                ended.unwrap();
            }
        }
        // Each rebalance completes only when the group waits for no other member.
        let newcomer = start_member(&config, topic, &log);
        until(&format!("another member owns its share of {topic}"), || {
            owned_partitions(&newcomer) == PARTITIONS as usize / 2
        })
        .await;
        newcomer.stop().await.unwrap();
        until(&format!("the member owns all of {topic} again"), || {
            owned_partitions(&member) == PARTITIONS as usize
        })
        .await;
        let server = kafka.clone();
        let fill = move || server.producer().produce_all(messages(topic, PARTITIONS, 1)).unwrap();
        tokio::task::spawn_blocking(fill).await.unwrap();
        log.reaches(PARTITIONS as usize).await;
        member.stop().await.unwrap();
    }
    tokio::task::spawn_blocking(move || drop((kafka, proxy))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_does_not_wait_for_a_spare_member_that_left() {
    let kafka = topic("left", 1, &[]).await;
    let mut config = kafka.consumer_config("left");
    // Longer than anything in this test takes.
    config.set("session.timeout.ms", "120000");
    let log = Log::default();
    let has = start_member(&config, "left", &log);
    let spare = start_member(&config, "left", &log);
    let is_ready = |member: &Serving| member.handle().health().ready.is_ok();
    until("both are in the group", || is_ready(&has) && is_ready(&spare)).await;
    let (member, leaves) = if owned_partitions(&has) == 1 { (has, spare) } else { (spare, has) };
    leaves.stop().await.unwrap();
    let newcomer = start_member(&config, "left", &log);
    until("another is in the group", || is_ready(&newcomer)).await;
    member.stop().await.unwrap();
    until("the new member owns the partition", || owned_partitions(&newcomer) == 1).await;
    newcomer.stop().await.unwrap();
}
