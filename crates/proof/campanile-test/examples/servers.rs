//! Kafka, Redis and Postgres for experiments:
//! `cargo xtask servers [--kafka-port PORT] [--redis-port PORT] [--postgres-port PORT]`.
//!
//! Prints the servers' addresses once they answer, and stops the servers on Ctrl-C, which also
//! deletes their data. Postgres has Campanile's schema.

use campanile_sql::MIGRATIONS;
use campanile_test::{KafkaServer, PgServer, RedisServer};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::error::Error;
use std::net::{Ipv4Addr, TcpListener};

const USAGE: &str =
    "usage: cargo xtask servers [--kafka-port PORT] [--redis-port PORT] [--postgres-port PORT]";

/// The ports that clients use by default.
const KAFKA: u16 = 9092;
const REDIS: u16 = 6379;
const POSTGRES: u16 = 5432;

fn main() -> Result<(), Box<dyn Error>> {
    let ports = Ports::from_args()?;
    // Installed before the first start, so that a signal during startup stops the servers that
    // already run.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;

    let mut redis = RedisServer::builder();
    if let Some(port) = ports.redis.or(default_port(REDIS)) {
        redis = redis.port(port);
    }
    let mut kafka = KafkaServer::builder().property("auto.create.topics.enable", "true");
    if let Some(port) = ports.kafka.or(default_port(KAFKA)) {
        kafka = kafka.port(port);
    }
    let mut postgres = PgServer::builder();
    if let Some(port) = ports.postgres.or(default_port(POSTGRES)) {
        postgres = postgres.port(port);
    }
    eprintln!("starting Redis");
    let redis = redis.start()?;
    eprintln!("starting Postgres");
    let postgres = postgres.start()?;
    for (_, migration) in MIGRATIONS {
        postgres.psql(migration)?;
    }
    eprintln!("starting Kafka");
    let kafka = kafka.start()?;

    println!("export CAMPANILE_BROKERS={}", kafka.bootstrap());
    println!("export CAMPANILE_REDIS={}", redis.url());
    println!("export CAMPANILE_POSTGRES={}", postgres.url());
    // For the command `campanile`.
    println!("export CAMPANILE_STORE={}", redis.url());
    eprintln!(
        "to create a topic, and to send a record to it: \
         cargo run -p campanile-test --example produce -- TOPIC [PAYLOAD]"
    );
    eprintln!("press Ctrl-C to stop the servers");
    signals.forever().next();
    eprintln!("stopping");
    Ok(())
}

/// The ports given on the command line.
#[derive(Default)]
struct Ports {
    kafka: Option<u16>,
    redis: Option<u16>,
    postgres: Option<u16>,
}

impl Ports {
    fn from_args() -> Result<Self, Box<dyn Error>> {
        use lexopt::{Arg, ValueExt};
        let mut ports = Self::default();
        let mut args = lexopt::Parser::from_env();
        while let Some(arg) = args.next()? {
            match arg {
                Arg::Long("kafka-port") => ports.kafka = Some(args.value()?.parse()?),
                Arg::Long("redis-port") => ports.redis = Some(args.value()?.parse()?),
                Arg::Long("postgres-port") => ports.postgres = Some(args.value()?.parse()?),
                _ => return Err(format!("{}; {USAGE}", arg.unexpected()).into()),
            }
        }
        Ok(ports)
    }
}

/// Chooses the port unless something already listens on it: a server that the machine runs itself
/// keeps its port.
fn default_port(port: u16) -> Option<u16> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok().then_some(port)
}
