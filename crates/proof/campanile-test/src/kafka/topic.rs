use crate::eventually;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::{Client, ClientContext, DefaultClientContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::time::Duration;

/// Time limit of creating a topic, and of waiting for its leaders.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit of one request to create a topic.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit of one metadata request.
const METADATA_TIMEOUT: Duration = Duration::from_millis(500);

/// Creates a topic with the settings `config` on a real broker, and waits until clients can use it.
/// Blocks the thread. For the mock cluster, use [`MockKafka`](crate::MockKafka)'s own method.
///
/// # Errors
///
/// Fails with the broker's error, or if a partition has no leader within a minute.
pub fn create_topic(
    bootstrap: &str,
    name: &str,
    partitions: i32,
    config: &[(&str, &str)],
) -> Result<(), KafkaError> {
    let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
    topic.config = config.to_vec();
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", bootstrap).create()?;
    let limit = Some(REQUEST_TIMEOUT);
    let options = AdminOptions::new().operation_timeout(limit).request_timeout(limit);
    let create = || {
        let mut results = pollster::block_on(admin.create_topics([&topic], &options))?;
        let result = results.pop().expect("one result for each topic");
        result.map(drop).map_err(|(_, code)| KafkaError::AdminOp(code))
    };
    let (mut created, mut has_timed_out) = (Ok(()), false);
    eventually(TIMEOUT, || {
        created = create();
        match created {
            // On a busy machine, the only broker may have missed its heartbeats, and is then fenced for
            // a moment.
            Err(KafkaError::AdminOp(RDKafkaErrorCode::InvalidReplicationFactor)) => return None,
            Err(KafkaError::AdminOp(RDKafkaErrorCode::OperationTimedOut)) => {
                has_timed_out = true;
                return None;
            }
            // By the request that was not answered.
            Err(KafkaError::AdminOp(RDKafkaErrorCode::TopicAlreadyExists)) if has_timed_out => {
                created = Ok(());
            }
            _ => {}
        }
        Some(())
    });
    created?;
    wait_for_leaders(admin.inner(), name, partitions)
}

/// Waits until this client sees the topic with all its partitions. The controller has answered by
/// then, but the broker and the clients learn of the topic slightly later.
pub(super) fn wait_for_leaders<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    partitions: i32,
) -> Result<(), KafkaError> {
    let mut last = Ok(());
    eventually(TIMEOUT, || {
        last = has_leaders(client, topic, partitions);
        last.is_ok().then_some(())
    });
    last
}

fn has_leaders<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    partitions: i32,
) -> Result<(), KafkaError> {
    let metadata = client.fetch_metadata(Some(topic), METADATA_TIMEOUT)?;
    let unknown = KafkaError::MetadataFetch(RDKafkaErrorCode::LeaderNotAvailable);
    let [topic] = metadata.topics() else {
        return Err(unknown);
    };
    let led = topic.partitions().iter().filter(|p| p.leader() >= 0);
    if i32::try_from(led.count()) == Ok(partitions) { Ok(()) } else { Err(unknown) }
}
