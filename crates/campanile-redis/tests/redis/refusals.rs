//! A server that refuses commands or is slow: the error that the store returns, that no attempt is
//! counted, and that the store recovers on its own.

use std::time::Duration;

use campanile_core::{Grant, Reply};
use campanile_idempotency::StoreErrorKind;
use campanile_redis::{RedisConfig, RedisStore};
use campanile_test::{Proxy, RedisServer, eventually};

use crate::support::{acquire, acquired, apply, chain, complete, key, timed};

const SOON: Duration = Duration::from_secs(30);

/// The command timeout of the store.
const TIMEOUT: Duration = Duration::from_millis(300);

/// A server, a store on it, and a lock acquired before the fault.
struct Scene {
    server: RedisServer,
    proxy: Proxy,
    store: RedisStore,
    held: Grant,
}

impl Scene {
    async fn on(server: RedisServer, user: Option<(&str, &str)>) -> Self {
        let proxy = Proxy::to(server.addr()).unwrap();
        let config = RedisConfig::new(format!("redis://{}", proxy.addr()));
        let mut config = config.with_command_timeout(TIMEOUT).unwrap();
        if let Some((user, password)) = user {
            config = config.with_credentials(user, password);
        }
        let store = RedisStore::connect(config).await.unwrap();
        let held = acquired(&store, &key("held"), 1).await;
        Self { server, proxy, store, held }
    }

    async fn new() -> Self {
        Self::on(RedisServer::start().unwrap(), None).await
    }

    /// Asserts that commands fail in this way during the fault.
    async fn fails(&self, kind: StoreErrorKind, text: &str) {
        for (name, operation) in [("held", complete(self.held, "done")), ("new", acquire(2))] {
            let (took, answer) = timed(apply(&self.store, &key(name), operation)).await;
            let error = answer.unwrap_err();
            assert_eq!(error.kind(), kind, "{}", chain(&error));
            assert!(chain(&error).contains(text), "{}", chain(&error));
            assert!(!chain(&error).contains("Wr1ghtW0rd"), "{}", chain(&error));
            assert!(took < 10 * TIMEOUT, "{took:?}");
        }
    }

    /// Asserts that commands succeed after the fault, and that no failed command has counted an
    /// attempt.
    async fn goes_on(&self, what: &str) {
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
        println!("{what}: answered {took:?} after the fault, with a timeout of {TIMEOUT:?}");
        for (name, owner) in [("new", 2), ("other", 3)] {
            let reply = apply(&self.store, &key(name), acquire(owner)).await.unwrap();
            assert!(matches!(reply, Reply::Acquired { attempt: 1, .. }), "{name}: {reply:?}");
        }
        let reply = apply(&self.store, &key("held"), acquire(4)).await.unwrap();
        assert!(matches!(reply, Reply::Duplicate { attempt: 1, .. }), "{reply:?}");
    }
}

#[tokio::test]
async fn a_script_of_others_that_runs_long_is_an_error_and_counts_nothing() {
    let scene = Scene::new().await;
    scene.server.cli(&["CONFIG", "SET", "busy-reply-threshold", "20"]).unwrap();
    let client = redis::Client::open(scene.server.url()).unwrap();
    let endless = std::thread::spawn(move || {
        let mut connection = client.get_connection().unwrap();
        redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut connection)
    });
    let is_busy = || scene.server.cli(&["PING"]).err().map(|error| error.to_string());
    let busy = eventually(SOON, is_busy).expect("the server should be busy");
    assert!(busy.starts_with("BUSY"), "{busy}");
    scene.fails(StoreErrorKind::Unavailable, "BUSY").await;
    scene.server.cli(&["SCRIPT", "KILL"]).unwrap();
    endless.join().unwrap().unwrap_err();
    scene.goes_on("a script of others").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_loads_its_data_is_an_error_until_it_has_it() {
    let server = RedisServer::builder()
        .append_only(true)
        .config("appendfsync", "always")
        // Pauses about every eighth key. Clients are served after every thousand keys.
        .config("key-load-delay", "-8")
        .start()
        .unwrap();
    let mut scene = Scene::on(server, None).await;
    let fill = "for n = 1, 100000 do redis.call('SET', 'filler' .. n, '') end";
    scene.server.cli(&["EVAL", fill, "0"]).unwrap();
    let mut restarting = scene.server;
    // Killed before the store sends a command, which the server would still answer.
    restarting.kill().unwrap();
    let (store, held) = (scene.store.clone(), scene.held);
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
                was_loading |= chain(&error).contains("loading the dataset");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    assert_eq!(reply, Reply::Completed);
    assert!(was_loading, "the server should have been seen loading");
    scene.server = restart.join().unwrap();
    scene.goes_on("loading").await;
}

#[tokio::test]
async fn a_server_that_cannot_write_its_snapshot_is_an_error_and_counts_nothing() {
    let scene = Scene::new().await;
    let folder = scene.server.cli(&["CONFIG", "GET", "dir"]).unwrap();
    let folder = std::path::Path::new(folder.lines().last().unwrap());
    // The snapshot is renamed to this path, which fails for a directory.
    std::fs::create_dir(folder.join("dump.rdb")).unwrap();
    scene.server.cli(&["CONFIG", "SET", "save", "3600 1"]).unwrap();
    scene.server.cli(&["BGSAVE"]).unwrap();
    let is_refusing = || scene.server.cli(&["SET", "k", "v"]).err();
    eventually(SOON, is_refusing).expect("the server should refuse writes");
    scene.fails(StoreErrorKind::Unavailable, "MISCONF").await;
    scene.server.cli(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]).unwrap();
    scene.goes_on("no snapshot").await;
}

const USER: &str = "app on >Wr1ghtW0rd ~* +@all";

#[tokio::test]
async fn permissions_that_are_taken_away_are_an_error_and_count_nothing() {
    let server = RedisServer::builder().config("user", USER).start().unwrap();
    let scene = Scene::on(server, Some(("app", "Wr1ghtW0rd"))).await;
    let set = |rule: &str| scene.server.cli(&["ACL", "SETUSER", "app", rule]).unwrap();
    for (denied, given) in [("-evalsha", "+evalsha"), ("-set", "+set"), ("resetkeys", "~*")] {
        set(denied);
        scene.fails(StoreErrorKind::Unavailable, "").await;
        set(given);
    }
    scene.goes_on("permissions").await;
}

#[tokio::test]
async fn a_password_that_was_changed_is_an_error_that_does_not_show_it() {
    let server = RedisServer::builder().config("user", USER).start().unwrap();
    let scene = Scene::on(server, Some(("app", "Wr1ghtW0rd"))).await;
    let set = |rules: &[&str]| {
        let command: Vec<_> = ["ACL", "SETUSER", "app"].iter().chain(rules).copied().collect();
        scene.server.cli(&command).unwrap();
        scene.server.cli(&["CLIENT", "KILL", "USER", "app"]).unwrap();
    };
    set(&["resetpass", ">other"]);
    scene.fails(StoreErrorKind::Unavailable, "").await;
    set(&[">Wr1ghtW0rd"]);
    scene.goes_on("password").await;
}

#[tokio::test]
async fn what_is_lost_on_the_way_or_too_late_times_out_and_counts_once() {
    type Fault = fn(&Proxy);
    let faults: [(&str, Fault); 3] = [
        ("requests are lost", Proxy::swallow_requests),
        ("replies are lost", Proxy::swallow_replies),
        ("each way takes a second", |proxy| proxy.delay(Duration::from_secs(1))),
    ];
    for (what, fault) in faults {
        let scene = Scene::new().await;
        fault(&scene.proxy);
        scene.fails(StoreErrorKind::Timeout, &scene.proxy.addr().to_string()).await;
        scene.proxy.heal().unwrap();
        scene.goes_on(what).await;
    }
}

#[tokio::test]
async fn a_server_that_hangs_or_is_cut_off_is_found_again() {
    let mut scene = Scene::new().await;
    scene.server.pause().unwrap();
    scene.fails(StoreErrorKind::Timeout, "did not answer").await;
    scene.server.resume().unwrap();
    scene.goes_on("hung").await;

    let scene = Scene::new().await;
    scene.proxy.cut();
    scene.fails(StoreErrorKind::Unavailable, &scene.proxy.addr().to_string()).await;
    scene.proxy.heal().unwrap();
    scene.goes_on("cut off").await;
}

#[tokio::test]
async fn a_server_that_is_slow_and_answers_in_time_is_no_error() {
    let scene = Scene::new().await;
    scene.proxy.delay(TIMEOUT / 6);
    for n in 0..3 {
        acquired(&scene.store, &key(n.to_string()), 1).await;
    }
    scene.goes_on("slow").await;
}
