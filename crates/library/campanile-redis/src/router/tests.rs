//! A cluster whose nodes redirect, are not ready, or have no bucket count.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;

use campanile_core::{
    Entry, ExpireOutcome, IdempotencyKey, Reply as Replied, Retention, StoreKey, step,
};
use campanile_idempotency::{ExpireStore, Found, InspectStore, Store, StoreErrorKind};
use redis::cmd;
use tokio::runtime::Builder;

use super::*;
use crate::bucket::Buckets;
use crate::samples;
use crate::simulation::{Reply, ScriptedServers};
use crate::{RedisConfig, RedisStore, Safety};

fn namespace() -> Namespace {
    "payments".try_into().unwrap()
}

fn key(name: &str) -> StoreKey {
    StoreKey::new(namespace(), &IdempotencyKey::new(name.to_owned()).unwrap())
}

/// Two keys in one slot.
fn keys_in_one_slot() -> [StoreKey; 2] {
    let slot_of = |key: &StoreKey| entry_slot(key, Buckets::DEFAULT);
    let first = key("first");
    let second = (0..).map(|n| key(&n.to_string())).find(|key| slot_of(key) == slot_of(&first));
    [first, second.unwrap()]
}

fn acquire(key: StoreKey) -> Command {
    Command { key, operation: samples::acquire(), retention: Retention::default() }
}

fn entry(key: StoreKey) -> (StoreKey, Entry) {
    (key, step(None, &samples::acquire(), SystemTime::UNIX_EPOCH).0.unwrap())
}

/// The reply of a script that has granted all locks.
fn granted() -> Reply {
    Reply::Bulk(1_800_000_000_000_000_u64.to_be_bytes().into())
}

#[tokio::test(start_paused = true)]
async fn endless_redirections_end_after_five() {
    for redirection in ["MOVED 1 b:2", "ASK 1 b:2"] {
        let (servers, store) = ScriptedServers::start_cluster(move |_, words| match words {
            ["EVALSHA" | "EVAL" | "TIME", ..] => Some(Reply::Error(redirection)),
            _ => None,
        })
        .await;
        let errors = [
            store.apply(acquire(key("a"))).await.unwrap_err(),
            store.expire(&[entry(key("a"))], Duration::ZERO).await.unwrap_err(),
            store.inspect(&key("a")).await.unwrap_err(),
        ];
        for (error, command) in errors.into_iter().zip(["EVALSHA", "EVAL", "TIME"]) {
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
            assert_eq!(servers.received(command).len(), 1 + 5, "{command}: {redirection}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn call_with_many_keys_is_split_and_not_redirected() {
    let (servers, store) =
        ScriptedServers::start_cluster(|address, words| match (address, words) {
            ("a:1", ["EVALSHA" | "EVAL", ..]) => Some(Reply::Error("ASK 1 b:2")),
            (_, ["EVALSHA", _, "1", ..]) => Some(granted()),
            (_, ["EVAL", _, "1", ..]) => Some(Reply::text("D")),
            _ => None,
        })
        .await;
    let keys = keys_in_one_slot();
    for answer in store.apply_batch(keys.clone().map(acquire).into()).await {
        assert!(matches!(answer.unwrap().reply, Replied::Acquired { .. }));
    }
    assert_eq!(servers.received("EVALSHA"), ["a:1", "a:1", "a:1", "b:2", "b:2"]);
    let outcomes = store.expire(&keys.map(entry), Duration::ZERO).await.unwrap();
    assert_eq!(outcomes, [ExpireOutcome::Done; 2]);
    assert_eq!(servers.received("EVAL"), ["a:1", "a:1", "b:2", "a:1", "b:2"]);
}

#[tokio::test(start_paused = true)]
async fn redirection_without_host_leads_to_the_same_host() {
    let (servers, store) = ScriptedServers::start_cluster(|address, words| match words {
        ["EVALSHA", ..] if address == "a:1" => Some(Reply::Error("ASK 1 :2")),
        ["EVALSHA", ..] => Some(granted()),
        _ => None,
    })
    .await;
    store.apply(acquire(key("a"))).await.unwrap();
    assert_eq!(servers.received("EVALSHA"), ["a:1", "a:2"]);
}

/// Sends a command to servers of which `a:1` redirects it to `b:2`, which refuses `ASKING`, and has this
/// reply to the command.
async fn apply_with_refused_asking(
    redirected: Reply,
) -> (ScriptedServers, Result<Answer, StoreError>) {
    let (servers, store) =
        ScriptedServers::start_cluster(move |address, words| match (address, words) {
            (_, ["ASKING"]) => Some(Reply::Error("NOPERM no permission for 'asking'")),
            ("a:1", ["EVALSHA", ..]) => Some(Reply::Error("ASK 1 b:2")),
            (_, ["EVALSHA", ..]) => Some(redirected.clone()),
            _ => None,
        })
        .await;
    let answer = store.apply(acquire(key("a"))).await;
    (servers, answer)
}

#[tokio::test(start_paused = true)]
async fn refused_asking_is_the_error_of_a_redirected_command() {
    let (servers, answer) = apply_with_refused_asking(Reply::Error("MOVED 1 a:1")).await;
    let error = answer.unwrap_err();
    assert!(format!("{error:?}").contains("'asking'"), "{error:?}");
    assert_eq!(servers.received("EVALSHA"), ["a:1", "b:2"]);
}

#[tokio::test(start_paused = true)]
async fn refused_asking_does_not_replace_an_answer() {
    // The slot has just arrived at the other node.
    let (_servers, answer) = apply_with_refused_asking(granted()).await;
    answer.unwrap();
}

#[tokio::test(start_paused = true)]
async fn refused_asking_does_not_replace_another_error() {
    let (_servers, answer) =
        apply_with_refused_asking(Reply::Error("OOM command not allowed")).await;
    let error = answer.unwrap_err();
    assert!(format!("{error:?}").contains("OutOfMemory"), "{error:?}");
}

/// Connects a store that waits for one replica to the scripted servers, as to a cluster.
async fn store_with_wait() -> RedisStore {
    store_with_wait_at("redis://a:1").await
}

async fn store_with_wait_at(url: &str) -> RedisStore {
    let config = RedisConfig::cluster([url]).with_safety(Safety::Off);
    RedisStore::connect(config.with_wait(1, Duration::from_secs(5))).await.unwrap()
}

/// Servers of which `b:2` is importing the slot from `a:1`, and has this many replicas.
fn importing_servers(replicas: i64) -> ScriptedServers {
    let is_asking = AtomicBool::new(false);
    ScriptedServers::start(move |address, words| match (address, words) {
        ("a:1", ["EVALSHA", ..]) => Some(Reply::Error("ASK 1 b:2")),
        ("b:2", ["ASKING"]) => {
            is_asking.store(true, Ordering::Relaxed);
            None
        }
        ("b:2", ["EVALSHA" | "EVAL", ..]) if !is_asking.swap(false, Ordering::Relaxed) => {
            Some(Reply::Error("MOVED 1 a:1"))
        }
        // The other node may have the same key.
        ("b:2", ["EVAL", _, "1", key]) if key.ends_with("wait") => {
            panic!("a key that is not an entry is created")
        }
        ("b:2", ["EVALSHA", ..]) => Some(granted()),
        ("b:2", ["EVAL", ..]) => Some(Reply::Nil),
        (_, ["WAIT", ..]) => Some(Reply::Int(replicas)),
        _ => None,
    })
}

#[tokio::test(start_paused = true)]
async fn importing_node_confirms_what_it_answered() {
    for (replicas, is_confirmed) in [(1, true), (0, false)] {
        let servers = importing_servers(replicas);
        let answer = store_with_wait().await.apply(acquire(key("a"))).await;
        assert_eq!(answer.is_ok(), is_confirmed, "{answer:?}");
        assert_eq!(servers.received("EVALSHA"), ["a:1", "b:2"]);
        assert_eq!(servers.received("WAIT"), ["b:2", "b:2"]);
    }
}

#[tokio::test(start_paused = true)]
async fn migrating_node_confirms_what_it_answered() {
    let servers = ScriptedServers::start(|_, words| match words {
        ["EVALSHA", ..] => Some(granted()),
        // It creates no keys any more.
        ["EVAL", _, "1", key] if key.ends_with("wait") => Some(Reply::Error("ASK 1 b:2")),
        ["EVAL", ..] => Some(Reply::Nil),
        ["WAIT", ..] => Some(Reply::Int(1)),
        _ => None,
    });
    store_with_wait().await.apply(acquire(key("a"))).await.unwrap();
    assert_eq!(servers.received("EVALSHA"), ["a:1"]);
    assert_eq!(servers.received("WAIT"), ["a:1", "a:1"]);
}

#[tokio::test(start_paused = true)]
async fn shortfall_of_migrating_node_is_waited_for_once() {
    for (reply_time, rest) in [(500, "4000"), (4_000, "1")] {
        let timeouts = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::clone(&timeouts);
        let servers = ScriptedServers::start(move |_, words| match words {
            ["EVALSHA", ..] => Some(granted()),
            ["EVAL", _, "1", key] if key.ends_with("wait") => Some(Reply::Error("ASK 1 b:2")),
            ["EVAL", ..] => Some(Reply::Nil),
            ["WAIT", "1", timeout] => {
                received.lock().unwrap().push((*timeout).to_owned());
                Some(Reply::Int(0))
            }
            _ => None,
        });
        let config = RedisConfig::cluster(["redis://a:1"]).with_safety(Safety::Off);
        let config = config.with_command_timeout(Duration::from_secs(60));
        let config = config.with_wait(1, Duration::from_secs(5));
        let store = RedisStore::connect(config).await.unwrap();
        servers.set_delay("a:1", Duration::from_millis(reply_time));
        let error = store.apply(acquire(key("a"))).await.unwrap_err();
        assert!(format!("{error:?}").contains("TimedOut"), "{error:?}");
        assert_eq!(*timeouts.lock().unwrap(), ["5000", rest]);
    }
}

#[tokio::test(start_paused = true)]
async fn entry_moved_meanwhile_is_confirmed_by_its_new_node() {
    let slot = entry_slot(&key("a"), Buckets::DEFAULT);
    for redirection in ["ASK", "MOVED"] {
        let redirection: &str = format!("{redirection} {slot} b:2").leak();
        // The replicas of the old node may be late, or may have left it.
        for replicas_of_old in [1, 0] {
            let commands = AtomicUsize::new(0);
            let servers = ScriptedServers::start(move |address, words| match (address, words) {
                ("a:1", ["EVALSHA", ..]) if commands.fetch_add(1, Ordering::Relaxed) > 0 => {
                    Some(Reply::Error(redirection))
                }
                ("a:1", ["EVAL", ..]) => Some(Reply::Error(redirection)),
                ("a:1", ["WAIT", ..]) => Some(Reply::Int(replicas_of_old)),
                (_, ["EVALSHA", ..]) => Some(granted()),
                (_, ["EVAL", ..]) => Some(Reply::Nil),
                (_, ["WAIT", ..]) => Some(Reply::Int(1)),
                _ => None,
            });
            store_with_wait().await.apply(acquire(key("a"))).await.unwrap();
            assert_eq!(servers.received("EVALSHA"), ["a:1", "a:1", "b:2"]);
            assert_eq!(servers.received("WAIT"), ["a:1", "a:1", "b:2"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn answer_that_moves_before_each_wait_is_repeated_five_times() {
    let servers = ScriptedServers::start(|_, words| match words {
        ["EVALSHA", ..] => Some(granted()),
        ["EVAL", ..] => Some(Reply::Error("MOVED 1 b:2")),
        ["WAIT", ..] => Some(Reply::Int(1)),
        _ => None,
    });
    let error = store_with_wait().await.apply(acquire(key("a"))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    assert_eq!(servers.received("EVALSHA").len(), 1 + 5);
    // The connection works.
    assert_eq!(servers.received("INFO").len(), 1);
}

/// The reply of a replica to a write.
const READ_ONLY: Reply = Reply::Error("READONLY You can't write against a read only replica.");

#[tokio::test(start_paused = true)]
async fn answer_that_cannot_be_confirmed_is_repeated_once() {
    let servers = ScriptedServers::start(|_, words| match words {
        ["EVALSHA", ..] => Some(granted()),
        ["EVAL", ..] => Some(READ_ONLY),
        _ => None,
    });
    let error = store_with_wait().await.apply(acquire(key("a"))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    assert_eq!(servers.received("EVALSHA").len(), 1 + 1);
}

#[tokio::test(start_paused = true)]
async fn broken_connections_and_moves_are_counted_apart() {
    // Each letter is the reply to the wait after one attempt.
    for (replies, is_confirmed) in [("bmmmmmc", true), ("mmbmmmc", true), ("mbmb", false)] {
        let attempts = AtomicUsize::new(0);
        let servers = ScriptedServers::start(move |_, words| match words {
            ["EVALSHA", ..] => {
                attempts.fetch_add(1, Ordering::Relaxed);
                Some(granted())
            }
            ["EVAL", ..] => Some(match replies.as_bytes()[attempts.load(Ordering::Relaxed) - 1] {
                b'b' => READ_ONLY,
                b'm' => Reply::Error("MOVED 1 b:2"),
                _ => Reply::Nil,
            }),
            ["WAIT", ..] => Some(Reply::Int(1)),
            _ => None,
        });
        let answer = store_with_wait().await.apply(acquire(key("a"))).await;
        assert_eq!(answer.is_ok(), is_confirmed, "{replies}: {answer:?}");
        assert_eq!(servers.received("EVALSHA").len(), replies.len(), "{replies}");
    }
}

#[tokio::test(start_paused = true)]
async fn broken_connection_does_not_fail_keys_that_move() {
    let servers = ScriptedServers::start(|address, words| match (address, words) {
        (_, ["CLUSTER", "SLOTS"]) => {
            let range = |first, last, host| {
                let master = Reply::Array(vec![Reply::text(host), Reply::Int(1)]);
                Reply::Array(vec![Reply::Int(first), Reply::Int(last), master])
            };
            Some(Reply::Array(vec![range(0, 8_191, "a"), range(8_192, 16_383, "b")]))
        }
        (_, ["EVALSHA", ..]) => Some(granted()),
        ("a:1", ["EVAL", ..]) => Some(READ_ONLY),
        ("b:1", ["EVAL", ..]) => Some(Reply::Error("MOVED 1 c:3")),
        (_, ["WAIT", ..]) => Some(Reply::Int(1)),
        _ => None,
    });
    let key_of = |is_first| {
        let mut keys = (0..).map(|n| key(&n.to_string()));
        let is_in_half = |key: &StoreKey| (entry_slot(key, Buckets::DEFAULT) < 8_192) == is_first;
        keys.find(is_in_half).unwrap()
    };
    let commands = [true, false].map(|is_first| acquire(key_of(is_first)));
    for answer in store_with_wait().await.apply_batch(commands.into()).await {
        assert_eq!(answer.unwrap_err().kind(), StoreErrorKind::Unavailable);
    }
    let received = servers.received("EVALSHA");
    let counts = ["a:1", "b:1"].map(|node| received.iter().filter(|it| *it == node).count());
    assert_eq!(counts, [1 + 1, 1 + 5]);
}

#[tokio::test(start_paused = true)]
async fn command_without_a_confirmed_answer_was_possibly_sent() {
    let is_demoted = AtomicBool::new(false);
    let servers = ScriptedServers::start(move |_, words| match words {
        ["EVALSHA", ..] => Some(granted()),
        ["EVAL", ..] => {
            is_demoted.store(true, Ordering::Relaxed);
            Some(READ_ONLY)
        }
        ["AUTH", ..] if is_demoted.load(Ordering::Relaxed) => Some(Reply::Error("WRONGPASS")),
        ["AUTH", ..] => Some(Reply::Ok),
        _ => None,
    });
    let store = store_with_wait_at("redis://:password@a:1").await;
    let error = store.apply(acquire(key("a"))).await.unwrap_err();
    assert!(format!("{error:?}").contains("was_sent: true"), "{error:?}");
    assert_eq!(servers.received("EVALSHA").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn read_from_a_node_returns_redirections_of_keys() {
    let (servers, store) = ScriptedServers::start_cluster(|_, words| match words {
        ["GETRANGE", "moved"] => Some(Reply::Error("MOVED 1 b:2")),
        ["GETRANGE", "asked"] => Some(Reply::Error("ASK 1 b:2")),
        _ => None,
    })
    .await;
    let read = async |router: Router<'_>| {
        let [node] = &router.topology.cluster().unwrap().masters().0[..] else { panic!("one") };
        let commands = ["moved", "asked"].map(|key| cmd("GETRANGE").arg(key).take());
        Ok(router.read(&Target::Node(Arc::clone(node)), &namespace(), &commands).await?)
    };
    let codes = store.0.call(read).await.unwrap().into_iter().map(|reply| match reply {
        Value::ServerError(error) => error.code().to_owned(),
        other => panic!("{other:?}"),
    });
    assert_eq!(codes.collect::<Vec<_>>(), ["MOVED", "ASK"]);
    assert_eq!(servers.received("GETRANGE"), ["a:1"; 2]);
}

#[tokio::test(start_paused = true)]
async fn unavailable_bucket_count_fails_only_new_namespaces() {
    let is_down = Arc::new(AtomicBool::new(true));
    let is_count_down = Arc::clone(&is_down);
    let (servers, store) = ScriptedServers::start_cluster(move |_, words| match words {
        ["GET", ..] if is_count_down.load(Ordering::Relaxed) => {
            Some(Reply::Error("CLUSTERDOWN Hash slot not served"))
        }
        ["EVALSHA", ..] => Some(granted()),
        _ => None,
    })
    .await;
    store.apply(acquire(key("a"))).await.unwrap_err();
    assert!(servers.received("EVALSHA").is_empty());
    is_down.store(false, Ordering::Relaxed);
    store.apply(acquire(key("a"))).await.unwrap();
    is_down.store(true, Ordering::Relaxed);
    // Has not read the count over its own connections.
    store.for_renewals().apply(acquire(key("a"))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn bucket_count_is_recorded_by_the_first_write() {
    let (servers, store) = ScriptedServers::start_cluster(|_, words| match words {
        ["GET" | "SET", ..] => Some(Reply::Nil),
        ["TIME"] => Some(Reply::Array(vec![Reply::text("1"), Reply::text("0")])),
        ["PEXPIRETIME", _] => Some(Reply::Int(-2)),
        ["EVALSHA", ..] => Some(granted()),
        _ => None,
    })
    .await;
    let inspection = store.inspect(&key("a")).await.unwrap();
    assert!(matches!(inspection.found, Found::Absent), "{inspection:?}");
    assert!(servers.received("SET").is_empty());
    store.apply(acquire(key("a"))).await.unwrap();
    store.apply(acquire(key("b"))).await.unwrap();
    assert_eq!(servers.received("SET").len(), 1);
}

#[test]
fn connecting_leaves_no_connection_on_its_runtime() {
    let is_loaded = AtomicBool::new(false);
    let servers = ScriptedServers::start(move |_, words| match words {
        // Inspected again later, when the masters are known.
        ["INFO"] if !is_loaded.swap(true, Ordering::Relaxed) => {
            Some(Reply::Error("LOADING Redis is loading the dataset in memory"))
        }
        ["CONFIG" | "TIME", ..] => Some(Reply::Error("NOPERM no permission")),
        ["EVALSHA", ..] => Some(granted()),
        _ => None,
    });
    let runtime = || Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let config = RedisConfig::cluster(["redis://a:1"]).with_safety(Safety::Warn);
    // Kept, but no longer driven.
    let connecting = runtime();
    let store = connecting.block_on(RedisStore::connect(config)).unwrap();
    assert_eq!(servers.received("CLUSTER").len(), 2);
    runtime().block_on(store.apply(acquire(key("a")))).unwrap();
}
