//! A Kafka that requires TLS and passwords, and allows each user only what the guide lists.

#![expect(clippy::unwrap_used, reason = "test helpers")]

mod command;
mod connecting;
mod consumer;
#[path = "../outage/events.rs"]
mod events;
#[path = "../support/group.rs"]
mod group;
mod rights;
mod scene;

use std::sync::LazyLock;
use std::time::Duration;

use campanile_test::{Authority, KafkaServer};

use crate::events::Events;

const TIMEOUT: Duration = Duration::from_secs(60);

/// The password of every user.
const PASSWORD: &str = "s3cret";

/// Each test has a user of its own.
const USERS: &[&str] = &[
    "scram",
    "plain",
    "stranger",
    "consumer",
    "revoked",
    "transactions",
    "doctor",
    "explain",
    "observe",
    "redrive",
];

/// Shared, because it takes a few seconds to start. A `static` is never dropped; the server's process
/// exits with ours.
static SERVER: LazyLock<Server> = LazyLock::new(Server::start);

struct Server {
    kafka: KafkaServer,
    authority: Authority,
    events: Events,
}

impl Server {
    fn start() -> Self {
        let events = Events::install();
        let authority = Authority::new().unwrap();
        authority.sign("server", "IP:127.0.0.1").unwrap();
        let [certificate, key] =
            ["server.crt", "server.key"].map(|file| authority.read(file).unwrap());
        let users: Vec<_> = USERS.iter().map(|&name| (name, PASSWORD)).collect();
        let kafka = KafkaServer::builder().secured(certificate, key, &users).start().unwrap();
        Self { kafka, authority, events }
    }
}
