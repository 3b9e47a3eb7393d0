//! The topics, and how they are filled.

use std::time::Duration;

use campanile::BoxError;
use campanile_test::KafkaServer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};

/// The header that carries the idempotency key.
pub(super) const KEY_HEADER: &str = "idempotency-key";

/// Number of record keys. Records with the same key are ordered.
const KEYS: u64 = 1_000;

/// Time limit for the brokers to acknowledge the buffered records.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(120);

/// A topic that is filled once and read by all contestants.
pub(super) struct Topic {
    pub(super) name: &'static str,
    pub(super) partitions: i32,
    /// How many of the partitions have records.
    pub(super) filled: i32,
    pub(super) records: u64,
    /// Size of a value in bytes.
    pub(super) value: usize,
    /// Size of the producer's batches in bytes. Without it, records are produced to the partitions
    /// in turns, and batches form as the records arrive.
    pub(super) batch: Option<usize>,
    /// Whether each record has an idempotency key. If so, 5 % of the records are exact duplicates.
    pub(super) keyed: bool,
    /// Whether a payload is the time at which its record was produced, in nanoseconds since boot. A
    /// run then starts at the end of the topic, and measures latencies.
    pub(super) timed: bool,
    /// How long a handler waits for each record.
    pub(super) handler_time: Duration,
}

impl Topic {
    /// Creates and fills the topic.
    pub(super) fn fill(&self, kafka: &KafkaServer) -> Result<(), BoxError> {
        let largest = (self.value + 64 * 1024).max(1024 * 1024).to_string();
        kafka.create_topic(self.name, self.partitions, &[("max.message.bytes", &largest)])?;
        let producer = self.producer(&kafka.bootstrap(), &largest)?;
        let value = vec![b'x'; self.value];
        if self.batch.is_none() {
            (0..self.records).try_for_each(|number| self.send(&producer, number, &value))?;
        } else {
            // One partition after another, so that its batches are full.
            for partition in 0..self.partitions {
                let of_partition = (0..self.records).filter(|&n| self.partition(n) == partition);
                of_partition.into_iter().try_for_each(|n| self.send(&producer, n, &value))?;
            }
        }
        producer.flush(FLUSH_TIMEOUT)?;
        self.check_filled(&producer)
    }

    fn producer(&self, bootstrap: &str, largest: &str) -> Result<TopicProducer, KafkaError> {
        let mut config = rdkafka::ClientConfig::new();
        config
            .set("bootstrap.servers", bootstrap)
            .set("enable.idempotence", "true")
            .set("message.max.bytes", largest)
            .set("queue.buffering.max.kbytes", "65536")
            .set("topic.metadata.propagation.max.ms", "30000");
        if let Some(batch) = self.batch {
            config
                .set("batch.size", batch.to_string())
                .set("batch.num.messages", "100000")
                .set("linger.ms", "1000");
        }
        config.create()
    }

    fn send(&self, producer: &TopicProducer, number: u64, value: &[u8]) -> Result<(), KafkaError> {
        let number = self.original(number);
        let key = format!("key-{:04}", self.key(number));
        let mut record =
            BaseRecord::to(self.name).partition(self.partition(number)).key(&key).payload(value);
        if self.keyed {
            let value = idempotency_key(number);
            let header = Header { key: KEY_HEADER, value: Some(&value) };
            record = record.headers(OwnedHeaders::new_with_capacity(1).insert(header));
        }
        loop {
            match producer.send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), returned)) => {
                    std::thread::sleep(Duration::from_millis(1));
                    record = returned;
                }
                Err((error, _)) => return Err(error),
            }
        }
    }

    /// Checks that the brokers have every record.
    fn check_filled(&self, producer: &TopicProducer) -> Result<(), BoxError> {
        let mut found = 0;
        for partition in 0..self.partitions {
            let (low, high) =
                producer.client().fetch_watermarks(self.name, partition, FLUSH_TIMEOUT)?;
            found += high - low;
        }
        if found as u64 != self.records {
            return Err(format!("{} has {found} of {} records", self.name, self.records).into());
        }
        Ok(())
    }

    /// The numbers in the keys of all records.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        (0..self.records).map(|number| self.original(number))
    }

    /// Finds the record that this one duplicates. An original is mapped to itself.
    fn original(&self, number: u64) -> u64 {
        // 1 015 modulo 20 is 15, so the original is not a duplicate itself.
        if self.keyed && number % 20 == 19 {
            number.checked_sub(1_015).unwrap_or(number)
        } else {
            number
        }
    }

    /// Computes the record key of an original.
    fn key(&self, number: u64) -> u64 {
        // Fibonacci hashing, so that keys come in no particular order.
        (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % KEYS
    }

    /// Computes the partition of a record.
    fn partition(&self, number: u64) -> i32 {
        let partitions = self.filled as u64;
        if self.keyed {
            (self.key(self.original(number)) % partitions) as i32
        } else {
            (number % partitions) as i32
        }
    }
}

type TopicProducer = ThreadedProducer<DefaultProducerContext>;

/// Formats the idempotency key of a record, which ends with the record's number.
pub(super) fn idempotency_key(number: u64) -> String {
    format!("payments/2f1c7a54-9d0e-4b7c-8a41/{number:012}")
}
