//! The guide: a page for each topic, which starts with an example.
//!
//! | page | contents |
//! |---|---|
//! | [`keys`] | idempotency keys, namespaces and fingerprints |
//! | [`producers`] | what a key must be, and how a producer sets it |
//! | [`locks`] | fencing tokens, lost locks, and where a side effect belongs |
//! | [`derived_keys`] | keys for the calls of a handler |
//! | [`steps`] | parts of a handler whose results are recorded, so that later attempts do not run them again |
//! | [`outcomes`] | outcomes, replies for duplicates, and retention |
//! | [`layers`] | the order of the layers, handler state, decoding, and other services |
//! | [`concurrency_and_ordering`] | concurrency, ordering by key, blocking handlers, and several topics |
//! | [`retries_and_dead_letters`] | retries, error markers, dead-letter topics, retry topics, and reprocessing |
//! | [`batches`] | handlers that take many records at once |
//! | [`kafka_to_kafka`] | Kafka transactions |
//! | [`outbox`] | the transactional inbox and outbox in Postgres |
//! | [`redis_in_production`] | settings of Redis, and waiting for replicas |
//! | [`postgres_in_production`] | the Postgres store |
//! | [`kafka_in_production`] | TLS, SASL, ACLs, startup, and personal data |
//! | [`managed_services`] | cloud services for Redis, Postgres and Kafka |
//! | [`sizing`] | throughput, memory, storage and connections |
//! | [`outages`] | unavailable stores and brokers, and timeouts |
//! | [`shutdown`] | graceful shutdown |
//! | [`health`] | liveness and readiness probes |
//! | [`observability`] | logs, spans, metrics, alerts, and the outcomes of records |
//! | [`testing`] | tests without servers and with servers |
//! | [`observing`] | what the layer would do in an existing consumer, without changing it |
//! | [`migrating`] | replacing an existing consumer |
//! | [`upgrading`] | rolling updates and changed settings |
//! | [`glossary`] | all terms, and the states of an entry |

// The pages link to the items of the crate.
#[cfg(doc)]
use crate::*;

#[doc = include_str!("keys.md")]
pub mod keys {}

#[doc = include_str!("producers.md")]
pub mod producers {}

#[doc = include_str!("locks.md")]
pub mod locks {}

#[doc = include_str!("derived_keys.md")]
pub mod derived_keys {}

#[doc = include_str!("steps.md")]
pub mod steps {}

#[doc = include_str!("outcomes.md")]
pub mod outcomes {}

#[doc = include_str!("layers.md")]
pub mod layers {}

#[doc = include_str!("concurrency_and_ordering.md")]
pub mod concurrency_and_ordering {}

#[doc = include_str!("retries_and_dead_letters.md")]
pub mod retries_and_dead_letters {}

#[doc = include_str!("batches.md")]
pub mod batches {}

#[doc = include_str!("kafka_to_kafka.md")]
pub mod kafka_to_kafka {}

#[doc = include_str!("outbox.md")]
pub mod outbox {}

#[doc = include_str!("redis_in_production.md")]
pub mod redis_in_production {}

#[doc = include_str!("postgres_in_production.md")]
pub mod postgres_in_production {}

#[doc = include_str!("kafka_in_production.md")]
pub mod kafka_in_production {}

#[doc = include_str!("managed_services.md")]
pub mod managed_services {}

#[doc = include_str!("sizing.md")]
pub mod sizing {}

#[doc = include_str!("outages.md")]
pub mod outages {}

#[doc = include_str!("shutdown.md")]
pub mod shutdown {}

#[doc = include_str!("health.md")]
pub mod health {}

#[doc = include_str!("observability.md")]
pub mod observability {}

#[doc = include_str!("testing.md")]
pub mod testing {}

#[doc = include_str!("observing.md")]
pub mod observing {}

#[doc = include_str!("migrating.md")]
pub mod migrating {}

#[doc = include_str!("upgrading.md")]
pub mod upgrading {}

#[doc = include_str!("glossary.md")]
pub mod glossary {}
