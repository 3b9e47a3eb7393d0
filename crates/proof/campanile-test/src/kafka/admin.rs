use super::raw::{Connection, put_string};
use super::topic::{create_topic, wait_for_leaders};
use crate::eventually;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewPartitions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use std::io;
use std::time::Duration;

/// Time limit of each change: a broker may be killed and restarted meanwhile.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Time limit of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

const ALTER_CLIENT_QUOTAS: i16 = 49;

/// Does to the topics and clients of a real broker what its operators do. Blocks the thread.
///
/// Each change is repeated until a broker has made it, also if it is killed and restarted meanwhile. A new
/// client sends each request, because one that a restarting broker has answered may never connect again
/// (<https://github.com/confluentinc/librdkafka/issues/5301>).
#[derive(Clone, Debug)]
pub struct KafkaAdmin {
    bootstrap: String,
}

impl KafkaAdmin {
    /// Creates an operator of these brokers, given as `host:port` separated by commas.
    pub fn new(bootstrap: impl Into<String>) -> Self {
        Self { bootstrap: bootstrap.into() }
    }

    /// Creates a topic as [`create_topic`] does.
    ///
    /// # Errors
    ///
    /// Fails with the broker's last error after two minutes.
    pub fn create_topic(
        &self,
        name: &str,
        partitions: i32,
        config: &[(&str, &str)],
    ) -> Result<(), KafkaError> {
        let mut has_failed = false;
        repeat(|| {
            let created = create_topic(&self.bootstrap, name, partitions, config);
            match created {
                // By the request that was not answered.
                Err(error) if has_failed && is(&error, RDKafkaErrorCode::TopicAlreadyExists) => {
                    Ok(())
                }
                created => {
                    has_failed |= created.is_err();
                    created
                }
            }
        })
    }

    /// Deletes a topic, and waits until the broker has forgotten it.
    ///
    /// # Errors
    ///
    /// Fails with the broker's last error after two minutes.
    pub fn delete_topic(&self, name: &str) -> Result<(), KafkaError> {
        let is_gone = |error: &KafkaError| is(error, RDKafkaErrorCode::UnknownTopicOrPartition);
        repeat(|| {
            let admin = self.client()?;
            let results = pollster::block_on(admin.delete_topics(&[name], &options()));
            match results.and_then(topic_result) {
                Err(error) if !is_gone(&error) => return Err(error),
                _ => {}
            }
            let metadata = admin.inner().fetch_metadata(None, REQUEST_TIMEOUT)?;
            match metadata.topics().iter().any(|topic| topic.name() == name) {
                true => Err(KafkaError::AdminOp(RDKafkaErrorCode::OperationTimedOut)),
                false => Ok(()),
            }
        })
    }

    /// Adds partitions to a topic, so that it has this number.
    ///
    /// # Errors
    ///
    /// Fails with the broker's last error after two minutes.
    pub fn add_partitions(&self, topic: &str, total: i32) -> Result<(), KafkaError> {
        let count = usize::try_from(total).expect("a topic has partitions");
        repeat(|| {
            let (admin, partitions) = (self.client()?, NewPartitions::new(topic, count));
            let results = pollster::block_on(admin.create_partitions([&partitions], &options()));
            match results.and_then(topic_result) {
                // By a request that was not answered.
                Err(error) if !is(&error, RDKafkaErrorCode::InvalidPartitions) => Err(error),
                _ => wait_for_leaders(admin.inner(), topic, total),
            }
        })
    }

    /// Deletes the records of a partition below an offset.
    ///
    /// # Errors
    ///
    /// Fails with the broker's last error after two minutes.
    pub fn delete_records(
        &self,
        topic: &str,
        partition: i32,
        below: i64,
    ) -> Result<(), KafkaError> {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, Offset::Offset(below))?;
        repeat(|| {
            let admin = self.client()?;
            let deleted = pollster::block_on(admin.delete_records(&list, &options()))?;
            deleted.elements().iter().try_for_each(|partition| partition.error())
        })
    }

    /// Replaces all settings of a topic.
    ///
    /// # Errors
    ///
    /// Fails with the broker's last error after two minutes.
    pub fn set_topic_config(&self, topic: &str, config: &[(&str, &str)]) -> Result<(), KafkaError> {
        repeat(|| {
            let admin = self.client()?;
            let alter = AlterConfig::new(ResourceSpecifier::Topic(topic));
            let alter = config.iter().fold(alter, |alter, (name, value)| alter.set(name, value));
            let mut results = pollster::block_on(admin.alter_configs([&alter], &options()))?;
            let result = results.pop().expect("one result for each topic");
            result.map(drop).map_err(|(_, code)| KafkaError::AdminOp(code))
        })
    }

    /// Looks up the first offset of a partition, and the end.
    ///
    /// # Errors
    ///
    /// Fails with the broker's last error after two minutes.
    pub fn watermarks(&self, topic: &str, partition: i32) -> Result<(i64, i64), KafkaError> {
        repeat(|| {
            let consumer: BaseConsumer = self.config().create()?;
            consumer.fetch_watermarks(topic, partition, REQUEST_TIMEOUT)
        })
    }

    /// Sets a quota of all clients with this `client.id`: `consumer_byte_rate` or `producer_byte_rate`, which
    /// are integers, or `request_percentage`. `None` removes it.
    ///
    /// # Errors
    ///
    /// Fails with the last error after two minutes.
    pub fn set_quota(&self, client_id: &str, quota: &str, value: Option<f64>) -> io::Result<()> {
        let mut body = vec![0, 0, 0, 1, 0, 0, 0, 1];
        put_string(&mut body, "client-id");
        put_string(&mut body, client_id);
        body.extend([0, 0, 0, 1]);
        put_string(&mut body, quota);
        body.extend(value.unwrap_or_default().to_be_bytes());
        // Whether it is removed, and whether it is only validated.
        body.extend([u8::from(value.is_none()), 0]);
        repeat(|| {
            let response =
                Connection::open(&*self.bootstrap)?.request(ALTER_CLIENT_QUOTAS, 0, &body)?;
            // The responses have a list of their results, which begin with an error.
            match response.get(8..14) {
                Some(&[0, 0, 0, 1, 0, 0]) => Ok(()),
                _ => Err(io::Error::other(format!("Kafka refused the quota: {response:?}"))),
            }
        })
    }

    /// The settings of a client of these brokers.
    pub fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &*self.bootstrap);
        config
    }

    fn client(&self) -> Result<AdminClient<DefaultClientContext>, KafkaError> {
        self.config().create()
    }
}

/// The options of one request.
fn options() -> AdminOptions {
    let limit = Some(REQUEST_TIMEOUT);
    AdminOptions::new().operation_timeout(limit).request_timeout(limit)
}

/// Repeats a request until it succeeds, or time is up.
fn repeat<T, E>(mut request: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let mut last = request();
    eventually(TIMEOUT, || {
        if last.is_err() {
            last = request();
        }
        last.is_ok().then_some(())
    });
    last
}

fn topic_result(
    mut results: Vec<Result<String, (String, RDKafkaErrorCode)>>,
) -> Result<(), KafkaError> {
    let result = results.pop().expect("one result for each topic");
    result.map(drop).map_err(|(_, code)| KafkaError::AdminOp(code))
}

fn is(error: &KafkaError, code: RDKafkaErrorCode) -> bool {
    matches!(error, KafkaError::AdminOp(found) if *found == code)
}
