//! Processes with the scripts of before details existed, and processes with the present ones, work
//! on the same entries.

use campanile_core::{Command, Entry, FencingToken, Grant, Operation, Reply, Retention, step};
use campanile_idempotency::Store;
use campanile_redis::RedisStore;
use campanile_test::RedisServer;
use fastrand::Rng;

use super::before::SCRIPTS_BEFORE;
use super::draw::{self, Sources};
use super::seed;
use crate::support::{key, long_timeout, raw_connection, redis_key};

const OPERATIONS: usize = 5_000;

/// Few, so that the grants of one script are settled by the other.
const KEYS: usize = 4;

/// Apart from the details, every entry is what it would be if no process knew details.
#[tokio::test]
async fn mixed_fleet_loses_nothing_but_details() {
    let server = RedisServer::start().unwrap();
    let mut raw = raw_connection(&server);
    let config = || long_timeout(server.url());
    let before = RedisStore::connect_with_scripts(config(), &SCRIPTS_BEFORE).await.unwrap();
    let after = RedisStore::connect(config()).await.unwrap();
    let mut rng = Rng::with_seed(seed());
    let mut expected: [Option<Entry>; KEYS] = Default::default();
    let mut stale: [Option<Grant>; KEYS] = Default::default();
    // Details with an error, with a reply, and as an old process found them.
    let (mut with_error, mut with_reply, mut seen_before) = (0, 0, 0);

    for operation_number in 0..OPERATIONS {
        let n = rng.usize(..KEYS);
        let key = key(format!("key {n}"));
        let get = |raw: &mut redis::Connection| -> Option<Vec<u8>> {
            redis::cmd("GET").arg(redis_key(&key)).query(raw).unwrap()
        };
        let (seconds, rest): (u64, u64) = redis::cmd("TIME").query(&mut raw).unwrap();
        let sources = Sources {
            stored: expected[n].as_ref().map(|entry| (entry.token(), entry.owner())),
            stale: stale[n],
            now: seconds * 1_000_000 + rest,
            floor: FencingToken::ZERO,
        };
        let mut operation = draw::operation(&mut rng, &sources);
        // No handler of a mixed fleet has steps.
        if matches!(operation, Operation::RecordStep { .. }) {
            continue;
        }
        // Redrives come from a tool that is not older than the entries.
        let is_redrive = matches!(operation, Operation::Redrive { .. });
        let store = if is_redrive || rng.bool() { &after } else { &before };
        if std::ptr::eq(store, &before) {
            let found = get(&mut raw).map(|bytes| Entry::from_bytes(&bytes).unwrap());
            seen_before += usize::from(found.is_some_and(|entry| entry.details().is_some()));
            operation = without_details(operation);
        }
        let retention = Retention::default();
        let command = Command { key: key.clone(), operation, retention };
        let answer = store.apply(command.clone()).await.unwrap();

        let was = expected[n].take();
        stale[n] = was
            .as_ref()
            .and_then(|entry| Some(Grant { token: entry.token(), owner: entry.owner()? }));
        let operation = without_details(command.operation);
        let (entry, reply) = step(was, &operation, answer.now);
        let context = format!("operation {operation_number}, {operation:?}");
        assert_eq!(reply_without_details(answer.reply), reply, "{context}");
        let stored = get(&mut raw);
        assert_eq!(stored.is_some(), entry.is_some(), "{context}");
        if let (Some(bytes), Some(entry)) = (stored, &entry) {
            let found = Entry::from_bytes(&bytes).expect(&context);
            let header = |entry: &Entry| {
                let mut header = entry.to_bytes()[..44].to_vec();
                header[6] = 0; // the kind of tail
                header
            };
            assert_eq!(header(&found), header(entry), "{context}: {found:?}, not {entry:?}");
            assert_eq!(found.error(), entry.error(), "{context}");
            assert_eq!(found.reply(), entry.reply(), "{context}");
            with_error += usize::from(found.details().is_some() && found.error().is_some());
            with_reply += usize::from(found.details().is_some() && found.reply().is_some());
        }
        expected[n] = entry;
    }
    assert!(with_error > 0 && with_reply > 0 && seen_before > 0);
}

fn without_details(mut operation: Operation) -> Operation {
    if let Operation::Acquire { details, .. } | Operation::Complete { details, .. } = &mut operation
    {
        *details = None;
    }
    operation
}

fn reply_without_details(mut reply: Reply) -> Reply {
    if let Reply::Duplicate { details, .. } = &mut reply {
        *details = None;
    }
    reply
}
