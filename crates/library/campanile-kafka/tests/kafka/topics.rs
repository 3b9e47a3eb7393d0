//! Topics that change while they are consumed.

use std::time::Duration;

use campanile_test::{KafkaServer, Message, Producer};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;

use crate::real::{blocking, logging, topic};
use crate::support::{Log, TIMEOUT, consumer, messages, serve, until, until_committed, within};

fn admin(kafka: &KafkaServer) -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", kafka.bootstrap()).create().unwrap()
}

/// Settings of a group with this protocol that soon notices changed topics.
fn with_fast_refresh(kafka: &KafkaServer, group: &str, protocol: &str) -> ClientConfig {
    let mut config = kafka.consumer_config(group);
    config.set("group.protocol", protocol).set("topic.metadata.refresh.interval.ms", "300");
    if protocol == "consumer" {
        config.remove("session.timeout.ms").remove("heartbeat.interval.ms");
    }
    config
}

/// Adds partitions to a topic, and waits until clients can use them.
async fn grow(kafka: &KafkaServer, topic: &str, partitions: usize) {
    let admin = admin(kafka);
    let grown = NewPartitions::new(topic, partitions);
    let has_grown = async {
        loop {
            // Fails if the broker has missed its heartbeats, and if the partitions exist already.
            let created = admin.create_partitions([&grown], &AdminOptions::new()).await;
            println!("{created:?}");
            let ask = || admin.inner().fetch_metadata(Some(topic), TIMEOUT);
            if let Ok(metadata) = tokio::task::block_in_place(ask) {
                let all = metadata.topics().iter().flat_map(|topic| topic.partitions());
                if all.filter(|partition| partition.leader() >= 0).count() == partitions {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within("the topic has its new partitions", has_grown).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_partitions_are_consumed_from_their_start() {
    for (name, protocol) in [("grows.classic", "classic"), ("grows.newer", "consumer")] {
        let kafka = topic(name, 1, &[]).await;
        let config = with_fast_refresh(kafka, name, protocol);
        let log = Log::default();
        let serving = serve(consumer(config.clone(), name), logging(&log));
        blocking(move || kafka.producer().produce_all(messages(name, 1, 5)).unwrap()).await;
        until_committed(&config, name, &[5]).await;
        grow(kafka, name, 3).await;
        // A new producer, because an existing one discovers new partitions only after minutes.
        blocking(move || {
            let producer = Producer::new(&kafka.bootstrap()).unwrap();
            producer.produce_all(messages(name, 3, 5)).unwrap();
        })
        .await;
        until("the new partitions are processed", || log.of(1).len() >= 5 && log.of(2).len() >= 5)
            .await;
        let summary = serving.stop().await.unwrap();
        assert_eq!(summary.processed, log.len() as u64);
        for partition in [1, 2] {
            assert_eq!(log.of(partition)[..5], [0, 1, 2, 3, 4]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topic_created_later_is_consumed_if_its_name_matches() {
    for (group, protocol) in [("regex.classic", "classic"), ("regex.newer", "consumer")] {
        let [first, second, other] = ["first", "second", "other"].map(|n| format!("{group}-{n}"));
        let other = other.replace("regex", "no-regex");
        let first: &'static str = first.leak();
        let kafka = topic(first, 1, &[]).await;
        let config = with_fast_refresh(kafka, group, protocol);
        let log = Log::default();
        let pattern = format!("^{}-.*", group.replace('.', "[.]"));
        let serving = serve(consumer(config.clone(), &pattern), logging(&log));
        blocking(move || kafka.producer().produce_all(messages(first, 1, 5)).unwrap()).await;
        until_committed(&config, first, &[5]).await;
        let second: &'static str = second.leak();
        blocking(move || {
            for name in [second, &other] {
                kafka.create_topic(name, 1, &[]).unwrap();
                kafka.producer().produce_all(messages(name, 1, 5)).unwrap();
            }
        })
        .await;
        until_committed(&config, second, &[5]).await;
        assert_eq!(serving.stop().await.unwrap().processed, 10);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recreated_topic_is_consumed_from_its_start() {
    let kafka = topic("anew.stays", 1, &[]).await;
    let protocols = [("anew.classic", "classic"), ("anew.newer", "consumer")];
    for (stayed, (name, protocol)) in (1..).zip(protocols) {
        topic(name, 1, &[]).await;
        let config = with_fast_refresh(kafka, name, protocol);
        let log = Log::default();
        let both = consumer(config.clone(), name).subscribe(["anew.stays"]);
        let serving = serve(both, logging(&log));
        blocking(move || kafka.producer().produce_all(messages(name, 1, 20)).unwrap()).await;
        until_committed(&config, name, &[20]).await;
        let deleted = admin(kafka).delete_topics(&[name], &AdminOptions::new()).await;
        deleted.unwrap()[0].clone().unwrap();
        // The other topic progresses in the meantime.
        blocking(|| kafka.producer().produce(Message::to("anew.stays").payload("p")).unwrap())
            .await;
        let handle = serving.handle();
        until("the partition is revoked", || handle.status().partitions.len() == 1).await;
        blocking(move || {
            kafka.create_topic(name, 1, &[]).unwrap();
            kafka.producer().produce_all(messages(name, 1, 5)).unwrap();
        })
        .await;
        until_committed(&config, name, &[5]).await;
        until_committed(&config, "anew.stays", &[stayed]).await;
        serving.stop().await.unwrap();
        assert_eq!(log.of(0).iter().filter(|offset| **offset == 0).count(), 3);
    }
}
