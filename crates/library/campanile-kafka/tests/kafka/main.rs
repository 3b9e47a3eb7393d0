//! Tests of the driver on librdkafka's mock cluster, and on a real Kafka where the mock does not
//! suffice.

#![expect(clippy::unwrap_used, reason = "test helpers")]

mod back_pressure;
mod batches;
mod blocking;
#[path = "../spans/captured_log.rs"]
mod captured_log;
mod damage;
mod dead_letter;
mod dependency;
mod duplicates;
mod every_record;
mod give_up;
mod handle;
mod health;
mod joining;
mod log_changes;
mod members;
mod oauth;
mod offsets;
mod order;
mod pauses;
mod producers;
mod real;
mod rebalance;
mod records;
mod refusals;
mod retries;
mod retry_topics;
mod routes;
mod seeks;
mod shutdown;
mod skip_at;
mod status;
mod stop_partition;
mod store_down;
mod support;
mod to_record;
mod topics;
mod transactions;
