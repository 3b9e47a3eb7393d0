//! Static members of a group.

use rdkafka::ClientConfig;

use crate::real::{blocking, logging, topic};
use crate::support::{Log, Serving, consumer, messages, serve, until, until_committed};

const PARTITIONS: i32 = 4;

fn serves(config: &ClientConfig, topic: &str, name: &str, log: &Log) -> Serving {
    let mut config = config.clone();
    config.set("group.instance.id", name);
    serve(consumer(config, topic), logging(log))
}

/// The partitions that the member owns.
fn of(member: &Serving) -> Vec<i32> {
    let status = member.handle().status();
    let mut partitions: Vec<_> = status.partitions.iter().map(|p| p.partition).collect();
    partitions.sort_unstable();
    partitions
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_static_member_that_comes_back_within_its_session_has_its_partitions_and_moves_none() {
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
        let one = serves(&config, name, "one", &stays);
        let other = serves(&config, name, "other", &leaves);
        until("each member owns half of the partitions", || {
            (of(&one).len(), of(&other).len()) == (2, 2)
        })
        .await;
        let (kept, left) = (of(&one), of(&other));
        other.stop().await.unwrap();
        blocking(move || kafka.producer().produce_all(messages(name, PARTITIONS, 5)).unwrap())
            .await;
        // By the time the member has processed its own partitions, it would also have processed the
        // other member's.
        stays.reaches(10).await;
        assert_eq!(of(&one), kept);
        let other = serves(&config, name, "other", &leaves);
        until_committed(&config, name, &[5; PARTITIONS as usize]).await;
        assert_eq!((of(&one), of(&other)), (kept.clone(), left.clone()));
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
