//! The driver against librdkafka's mock cluster, and against a real Kafka where that is needed.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod every_record;
mod support;
