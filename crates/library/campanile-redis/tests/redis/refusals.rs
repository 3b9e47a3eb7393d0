//! A server that refuses commands or is slow: the error that the store returns, that no attempt is
//! counted, and that the store recovers on its own.

use std::time::Duration;

use campanile_core::{Grant, Reply};
use campanile_idempotency::StoreErrorKind;
use campanile_redis::{RedisConfig, RedisStore};
use campanile_test::{Proxy, RedisServer, eventually};

use crate::support::{
    MAX_CALL_TIME, acquire, acquire_lock, apply, apply_with_retry, chain, complete, key,
    load_at_once, long_timeout, timed,
};

const MAX_WAIT: Duration = Duration::from_secs(30);

/// The command timeout of the store.
const TIMEOUT: Duration = Duration::from_millis(300);

/// A server, a store on it, and a lock acquired before the fault.
struct FaultFixture {
    server: RedisServer,
    proxy: Proxy,
    store: RedisStore,
    held: Grant,
}

impl FaultFixture {
    async fn with_server(server: RedisServer, user: Option<(&str, &str)>) -> Self {
        Self::with_timeout(server, user, TIMEOUT).await
    }

    async fn with_timeout(
        server: RedisServer,
        user: Option<(&str, &str)>,
        timeout: Duration,
    ) -> Self {
        let proxy = Proxy::to(server.addr()).unwrap();
        let config = RedisConfig::new(format!("redis://{}", proxy.addr()));
        let mut config = config.with_command_timeout(timeout);
        if let Some((user, password)) = user {
            config = config.with_credentials(user, password);
        }
        let store = RedisStore::connect(config).await.unwrap();
        let held = acquire_lock(&store, &key("held"), 1).await;
        Self { server, proxy, store, held }
    }

    async fn new() -> Self {
        Self::with_server(RedisServer::start().unwrap(), None).await
    }

    /// Asserts that commands fail in this way during the fault. On a busy machine, some time out
    /// instead.
    async fn assert_fails(&self, kind: StoreErrorKind, text: &str) {
        for (name, operation) in [("held", complete(self.held, "done")), ("new", acquire(2))] {
            let mut tries = 0;
            let (took, error) = loop {
                let (took, answer) = timed(apply(&self.store, &key(name), operation.clone())).await;
                let error = answer.unwrap_err();
                tries += 1;
                if error.kind() == kind || error.kind() != StoreErrorKind::Timeout || tries > 100 {
                    break (took, error);
                }
            };
            assert_eq!(error.kind(), kind, "{}", chain(&error));
            assert!(chain(&error).contains(text), "{}", chain(&error));
            assert!(!chain(&error).contains("Wr1ghtW0rd"), "{}", chain(&error));
            assert!(took < MAX_CALL_TIME, "{took:?}");
        }
    }

    /// Asserts that commands succeed after the fault, and that no failed command has counted an
    /// attempt.
    async fn assert_recovers(&self, what: &str) {
        let (took, ()) = timed(async {
            let mut tries = 0;
            while let Err(error) =
                apply(&self.store, &key("held"), complete(self.held, "done")).await
            {
                tries += 1;
                assert!(tries < 3000, "{}", chain(&error));
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        println!("{what}: answered {took:?} after the fault");
        for (name, owner) in [("new", 2), ("other", 3)] {
            let reply = apply_with_retry(&self.store, &key(name), acquire(owner)).await;
            assert!(matches!(reply, Reply::Acquired { attempt: 1, .. }), "{name}: {reply:?}");
        }
        let reply = apply_with_retry(&self.store, &key("held"), acquire(4)).await;
        assert!(matches!(reply, Reply::Duplicate { attempt: 1, .. }), "{reply:?}");
    }
}

#[tokio::test]
async fn busy_server_fails_without_counting_attempts() {
    let fixture = FaultFixture::new().await;
    fixture.server.cli(&["CONFIG", "SET", "busy-reply-threshold", "20"]).unwrap();
    let client = redis::Client::open(fixture.server.url()).unwrap();
    let endless = std::thread::spawn(move || {
        let mut connection = client.get_connection().unwrap();
        redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut connection)
    });
    let is_busy = || fixture.server.cli(&["PING"]).err().map(|error| error.to_string());
    let busy = eventually(MAX_WAIT, is_busy).expect("the server should be busy");
    assert!(busy.starts_with("BUSY"), "{busy}");
    fixture.assert_fails(StoreErrorKind::Unavailable, "BUSY").await;
    fixture.server.cli(&["SCRIPT", "KILL"]).unwrap();
    endless.join().unwrap().unwrap_err();
    fixture.assert_recovers("a script of others").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn loading_server_fails_until_loaded() {
    let server = RedisServer::builder()
        .append_only(true)
        .config("appendfsync", "always")
        // In µs for each key. Clients are served after every thousand keys.
        .config("key-load-delay", "100")
        .start()
        .unwrap();
    let mut fixture = FaultFixture::with_timeout(server, None, Duration::from_secs(60)).await;
    let url = fixture.server.url();
    let fill = "for n = 1, 100000 do redis.call('SET', 'filler' .. n, '') end";
    fixture.server.cli(&["EVAL", fill, "0"]).unwrap();
    let mut restarting = fixture.server;
    // Killed before the store sends a command, which the server would still answer.
    restarting.kill().unwrap();
    let (store, held) = (fixture.store.clone(), fixture.held);
    let restart = std::thread::spawn(move || {
        restarting.restart().unwrap();
        restarting
    });
    let mut was_loading = false;
    let reply = loop {
        match apply(&store, &key("held"), complete(held, "done")).await {
            Ok(reply) => break reply,
            Err(error) => {
                assert_ne!(error.kind(), StoreErrorKind::Unreadable, "{}", chain(&error));
                if !was_loading && chain(&error).contains("loading the dataset") {
                    was_loading = true;
                    load_at_once(&url);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    assert_eq!(reply, Reply::Completed);
    assert!(was_loading, "the server should have been seen loading");
    fixture.server = restart.join().unwrap();
    fixture.assert_recovers("loading").await;
}

#[tokio::test]
async fn failed_snapshot_fails_without_counting_attempts() {
    let fixture = FaultFixture::new().await;
    let folder = fixture.server.cli(&["CONFIG", "GET", "dir"]).unwrap();
    let folder = std::path::Path::new(folder.lines().last().unwrap());
    // The snapshot is renamed to this path, which fails for a directory.
    std::fs::create_dir(folder.join("dump.rdb")).unwrap();
    fixture.server.cli(&["CONFIG", "SET", "save", "3600 1"]).unwrap();
    fixture.server.cli(&["BGSAVE"]).unwrap();
    let is_refusing = || fixture.server.cli(&["SET", "k", "v"]).err();
    eventually(MAX_WAIT, is_refusing).expect("the server should refuse writes");
    fixture.assert_fails(StoreErrorKind::Unavailable, "MISCONF").await;
    fixture.server.cli(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]).unwrap();
    fixture.assert_recovers("no snapshot").await;
}

const USER: &str = "app on >Wr1ghtW0rd ~* +@all";

#[tokio::test]
async fn revoked_permissions_fail_without_counting_attempts() {
    let server = RedisServer::builder().config("user", USER).start().unwrap();
    let fixture = FaultFixture::with_server(server, Some(("app", "Wr1ghtW0rd"))).await;
    let set = |rule: &str| fixture.server.cli(&["ACL", "SETUSER", "app", rule]).unwrap();
    for (denied, given) in [("-evalsha", "+evalsha"), ("-set", "+set"), ("resetkeys", "~*")] {
        set(denied);
        fixture.assert_fails(StoreErrorKind::Unavailable, "").await;
        set(given);
    }
    fixture.assert_recovers("permissions").await;
}

#[tokio::test]
async fn changed_password_fails_without_being_shown() {
    let server = RedisServer::builder().config("user", USER).start().unwrap();
    let fixture = FaultFixture::with_server(server, Some(("app", "Wr1ghtW0rd"))).await;
    let set = |rules: &[&str]| {
        let command: Vec<_> = ["ACL", "SETUSER", "app"].iter().chain(rules).copied().collect();
        fixture.server.cli(&command).unwrap();
        fixture.server.cli(&["CLIENT", "KILL", "USER", "app"]).unwrap();
    };
    set(&["resetpass", ">other"]);
    fixture.assert_fails(StoreErrorKind::Unavailable, "").await;
    set(&[">Wr1ghtW0rd"]);
    fixture.assert_recovers("password").await;
}

#[tokio::test]
async fn lost_or_late_messages_time_out_and_count_once() {
    type Fault = fn(&Proxy);
    let faults: [(&str, Fault); 3] = [
        ("requests are lost", Proxy::swallow_requests),
        ("replies are lost", Proxy::swallow_replies),
        ("each way takes a second", |proxy| proxy.delay(Duration::from_secs(1))),
    ];
    for (what, fault) in faults {
        let fixture = FaultFixture::new().await;
        fault(&fixture.proxy);
        fixture.assert_fails(StoreErrorKind::Timeout, &fixture.proxy.addr().to_string()).await;
        fixture.proxy.heal().unwrap();
        fixture.assert_recovers(what).await;
    }
}

#[tokio::test]
async fn store_recovers_from_hung_or_cut_off_server() {
    let mut fixture = FaultFixture::new().await;
    fixture.server.pause().unwrap();
    fixture.assert_fails(StoreErrorKind::Timeout, "did not answer").await;
    fixture.server.resume().unwrap();
    fixture.assert_recovers("hung").await;

    let fixture = FaultFixture::new().await;
    fixture.proxy.cut();
    fixture.assert_fails(StoreErrorKind::Unavailable, &fixture.proxy.addr().to_string()).await;
    fixture.proxy.heal().unwrap();
    fixture.assert_recovers("cut off").await;
}

#[tokio::test]
async fn slow_server_within_timeout_causes_no_error() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.addr()).unwrap();
    proxy.delay(Duration::from_millis(50));
    let config = long_timeout(format!("redis://{}", proxy.addr()));
    let store = RedisStore::connect(config).await.unwrap();
    for n in 0..3 {
        let reply = apply(&store, &key(n.to_string()), acquire(1)).await.unwrap();
        assert!(matches!(reply, Reply::Acquired { attempt: 1, .. }), "{reply:?}");
    }
}
