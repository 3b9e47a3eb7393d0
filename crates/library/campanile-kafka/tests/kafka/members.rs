//! Static members of a group, and members whose place is taken by one that was killed.

use campanile_kafka::ConsumerStage;
use rdkafka::ClientConfig;

use crate::captured_log::CapturedLog;
use crate::real::{blocking, logging, start_with_proxy_and, topic};
use crate::support::{Log, Serving, consumer, messages, serve, until, until_committed};

const PARTITIONS: i32 = 4;

fn start_member(config: &ClientConfig, topic: &str, name: &str, log: &Log) -> Serving {
    let mut config = config.clone();
    config.set("group.instance.id", name);
    serve(consumer(config, topic), logging(log))
}

/// The partitions that the member owns.
fn owned_partitions(member: &Serving) -> Vec<i32> {
    let status = member.handle().status();
    let mut partitions: Vec<_> = status.partitions.iter().map(|p| p.partition).collect();
    partitions.sort_unstable();
    partitions
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn static_member_keeps_its_partitions_across_a_restart() {
    for (name, protocol) in [("static.classic", "classic"), ("static.newer", "consumer")] {
        let kafka = topic(name, PARTITIONS, &[]).await;
        let mut config = kafka.consumer_config(name);
        config.set("group.protocol", protocol);
        match protocol {
            // Longer than anything in this test takes.
            "classic" => config.set("session.timeout.ms", "120000"),
            _ => config.remove("session.timeout.ms").remove("heartbeat.interval.ms"),
        };
        let (stays, leaves) = (Log::default(), Log::default());
        let one = start_member(&config, name, "one", &stays);
        let other = start_member(&config, name, "other", &leaves);
        until("each member owns half of the partitions", || {
            (owned_partitions(&one).len(), owned_partitions(&other).len()) == (2, 2)
        })
        .await;
        let (kept, left) = (owned_partitions(&one), owned_partitions(&other));
        other.stop().await.unwrap();
        blocking(move || kafka.producer().produce_all(messages(name, PARTITIONS, 5)).unwrap())
            .await;
        // By the time the member has processed its own partitions, it would also have processed the
        // other member's.
        stays.reaches(10).await;
        assert_eq!(owned_partitions(&one), kept);
        let other = start_member(&config, name, "other", &leaves);
        until_committed(&config, name, &[5; PARTITIONS as usize]).await;
        assert_eq!(
            (owned_partitions(&one), owned_partitions(&other)),
            (kept.clone(), left.clone())
        );
        let partitions = |log: &Log| {
            let mut partitions: Vec<_> = log.all().into_iter().map(|(p, _)| p).collect();
            partitions.sort_unstable();
            partitions.dedup();
            partitions
        };
        assert_eq!((partitions(&stays), partitions(&leaves)), (kept, left));
        one.stop().await.unwrap();
        other.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "current_thread")]
async fn member_without_a_place_joins_once_a_killed_member_is_removed() {
    let (events, _guard) = CapturedLog::start();
    let waits = || events.lines("WARN", "the group has no place for this consumer").len();
    let start = || {
        let properties =
            [("group.consumer.session.timeout.ms", "6000"), ("group.consumer.max.size", "1")];
        let servers = start_with_proxy_and(&properties);
        for name in ["place.static", "place.full"] {
            servers.0.create_topic(name, PARTITIONS, &[]).unwrap();
        }
        servers
    };
    let (kafka, proxy) = blocking(start).await;
    // The place of a killed member is its name in one group, and the only place in the other.
    for (round, (name, names)) in
        [("place.static", ["one", "one"]), ("place.full", ["one", "two"])].into_iter().enumerate()
    {
        let mut config = kafka.consumer_config(name);
        config.set("group.protocol", "consumer");
        config.remove("session.timeout.ms").remove("heartbeat.interval.ms");
        let mut proxied = config.clone();
        proxied.set("bootstrap.servers", proxy.addr().to_string());
        let killed = start_member(&proxied, name, names[0], &Log::default());
        until("the member owns all partitions", || owned_partitions(&killed).len() == 4).await;

        // A member that waits for its place is not started yet, and can be shut down.
        let waiting = start_member(&config, name, names[1], &Log::default());
        until("the member waits", || waits() > 2 * round).await;
        assert_eq!(waiting.handle().status().stage, ConsumerStage::Starting);
        waiting.stop().await.unwrap();
        assert_eq!(owned_partitions(&killed).len(), 4);

        let next = start_member(&config, name, names[1], &Log::default());
        until("the next member waits", || waits() > 2 * round + 1).await;
        proxy.cut();
        until("the next member owns all partitions", || owned_partitions(&next).len() == 4).await;
        killed.drop().await;
        next.stop().await.unwrap();
        proxy.heal().unwrap();
    }
    blocking(move || drop(kafka)).await;
}
