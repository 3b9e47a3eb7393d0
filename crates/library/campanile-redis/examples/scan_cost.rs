//! The server's processor time for a scan, and how long it blocks the server at a time.
//!
//! ```text
//! cargo run --release -p campanile-redis --example scan_cost -- 1000000
//! ```
//!
//! All but one in 32 of the entries are COMPLETED, and the scan selects the others.

use std::time::Duration;

use campanile_core::{
    BoxError, Command, Details, FencingToken, Grant, IdempotencyKey, Namespace, Operation, Owner,
    Retention, State, StoreKey,
};
use campanile_idempotency::{InspectStore, ScanCursor, ScanFilter, Store};
use campanile_redis::RedisStore;
use campanile_test::RedisServer;
use tokio::time::Instant;

const DEFAULT_ENTRIES: u64 = 20_000;
const BATCH: u64 = 64;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let entries = std::env::args().nth(1).map_or(Ok(DEFAULT_ENTRIES), |count| count.parse())?;
    let server = RedisServer::start()?;
    let store = RedisStore::connect(server.url()).await?;
    let namespace = Namespace::try_from("namespace")?;
    for first in (0..entries).step_by(BATCH as usize) {
        let commands = (first..first + BATCH).map(|number| store_entry(&namespace, number));
        for answer in store.apply_batch(commands.collect()).await {
            answer?;
        }
    }

    let unfinished = ScanFilter::new(namespace).with_state(State::Processing);
    server.cli(&["CONFIG", "RESETSTAT"])?;
    let cpu_before = cpu(&server)?;
    let start = Instant::now();
    let (mut found, mut cursor) = (0, Some(ScanCursor::default()));
    while let Some(at) = cursor {
        let page = store.scan(&unfinished, &at).await?;
        found += page.entries.len();
        cursor = page.next;
    }
    let (elapsed, cpu) = (start.elapsed(), cpu(&server)? - cpu_before);
    println!("found {found} of {entries} in {elapsed:.1?}, with {cpu:.2?} of the server's time");
    let scans = server.cli(&["INFO", "commandstats"])?;
    for line in scans.lines().filter(|line| line.starts_with("cmdstat_scan:")) {
        println!("{line}");
    }
    Ok(())
}

/// An entry that is completed, by adoption, or one that is being processed.
fn store_entry(namespace: &Namespace, number: u64) -> Command {
    let key = IdempotencyKey::new(format!("payment-{number}")).expect("not empty");
    let owner = Owner::new(number + 1).expect("not zero");
    let operation = if number.is_multiple_of(32) {
        Operation::Acquire {
            owner,
            ttl: Duration::from_secs(60),
            max_attempts: 8,
            fingerprint: None,
            floor: FencingToken::ZERO,
            details: Some(Details::builder(owner).key(&key).instance("host/1").build()),
        }
    } else {
        let grant = Grant { token: FencingToken::ZERO, owner };
        Operation::Complete { grant, attempt: 1, fingerprint: None, reply: None, details: None }
    };
    let key = StoreKey::new(namespace.clone(), &key);
    Command { key, operation, retention: Retention::default() }
}

/// The processor time that the server has used.
fn cpu(server: &RedisServer) -> Result<Duration, BoxError> {
    let info = server.cli(&["INFO", "cpu"])?;
    let mut used = Duration::ZERO;
    for name in ["used_cpu_user:", "used_cpu_sys:"] {
        let seconds = info.lines().find_map(|line| line.strip_prefix(name)).ok_or("no INFO cpu")?;
        used += Duration::from_secs_f64(seconds.parse()?);
    }
    Ok(used)
}
