//! Warnings: that calls or handlers will have to wait, with advice, and that a lock is lost. A
//! separate binary, because it captures all log messages.

#![expect(clippy::unwrap_used, reason = "test helpers")]

#[path = "../../campanile-redis/tests/redis/captured_log.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod captured_log;
#[path = "inbox/fixture.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod fixture;
#[path = "postgres/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use campanile_core::BoxError;
use campanile_idempotency::IdempotencyConfig;
use campanile_postgres::{FindingKind, PgStore, migrate};
use campanile_test::{Authority, PgServer, Proxy};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};

use crate::captured_log::CapturedLog;
use crate::fixture::{Fixture, book, request};
use crate::support::{Database, EVENT_TIMEOUT};

/// The log messages of all tests in this binary.
fn log() -> &'static CapturedLog {
    static LOG: OnceLock<CapturedLog> = OnceLock::new();
    LOG.get_or_init(|| {
        let log = CapturedLog::default();
        log.listen();
        log
    })
}

/// The logged lines about handlers that wait for connections.
fn waits() -> Vec<String> {
    let text = log().text();
    let lines = text.lines().filter(|line| line.contains("handlers are waiting for connections"));
    lines.map(str::to_owned).collect()
}

/// Books for this key. No connection is available until this reason is logged.
async fn book_once_logged(
    fixture: &Fixture,
    id: &str,
    reason: &str,
    make_available: impl FnOnce(),
) {
    let waiting = async {
        while !waits().iter().any(|line| line.contains(reason)) {
            sleep(Duration::from_millis(20)).await;
        }
        make_available();
    };
    let booking = async {
        loop {
            let booked = fixture.run(service_fn(book), id).await;
            // If it takes too long to open a connection, the attempt is handed back.
            let is_handed_back = booked.as_ref().is_err_and(|error| {
                support::chain(&**error).contains("waiting for a connection to Postgres")
            });
            if !is_handed_back {
                break booked;
            }
        }
    };
    let (booked, ()) =
        timeout(EVENT_TIMEOUT, async { tokio::join!(booking, waiting) }).await.unwrap();
    booked.unwrap();
}

#[tokio::test]
async fn server_too_far_for_the_command_timeout_is_logged_at_start() {
    let log = log();
    let database = Database::new().await;
    database.store().await;
    let warnings = |text: &str| text.matches("Postgres is too far away").count();
    assert_eq!(warnings(&log.text()), 0, "{}", log.text());
    let (server, name) = database.url().rsplit_once('/').unwrap();
    let (user, server) = server.rsplit_once('@').unwrap();
    let proxy = Proxy::to(server).unwrap();
    proxy.delay(Duration::from_millis(30));
    let config = support::long_timeouts(&format!("{user}@{}/{name}", proxy.addr()));
    let config = config.with_command_timeout(Duration::from_millis(200));
    PgStore::connect(config).await.unwrap();
    let text = log.text();
    assert_eq!(warnings(&text), 1, "{text}");
    assert!(text.contains("`PgConfig::with_command_timeout` must be"), "{text}");
}

/// Calls the store until this change of the settings is logged.
async fn change_is_logged(store: &PgStore, server: &PgServer, change: [&str; 2]) {
    let [old, new] = change;
    let change = |line: &&str| {
        let is_here = line.contains(&format!("address=\"{}", server.addr()));
        is_here && line.split_once(" new=").is_some_and(|(a, b)| a.contains(old) && b.contains(new))
    };
    let calling = async {
        while log().text().lines().filter(change).count() == 0 {
            let _ = support::apply(store, &support::key("key"), support::acquire(1)).await;
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(EVENT_TIMEOUT, calling).await.unwrap_or_else(|_| panic!("{}", log().text()));
    assert_eq!(log().text().lines().filter(change).count(), 1, "{}", log().text());
}

#[tokio::test]
async fn changed_durability_settings_are_logged_with_old_and_new_value() {
    log();
    let server = PgServer::start().unwrap();
    let config = support::long_timeouts(&server.url());
    migrate(config.clone()).await.unwrap();
    let store = PgStore::connect(config).await.unwrap();
    support::apply(&store, &support::key("key"), support::acquire(1)).await.unwrap();
    // By a reload, over a connection that is already open.
    server.psql("ALTER SYSTEM SET synchronous_commit = 'local'").unwrap();
    server.psql("SELECT pg_reload_conf()").unwrap();
    change_is_logged(&store, &server, ["synchronous_commit=on ", "synchronous_commit=local "])
        .await;
    // For a role, which new connections see.
    server.psql("ALTER ROLE postgres SET synchronous_commit = 'off'").unwrap();
    server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'campanile'").unwrap();
    change_is_logged(&store, &server, ["synchronous_commit=local ", "synchronous_commit=off "])
        .await;
    server.psql("ALTER SYSTEM SET synchronous_standby_names = 'db2'").unwrap();
    server.psql("SELECT pg_reload_conf()").unwrap();
    change_is_logged(&store, &server, ["standby_names=\"", "standby_names=db2\""]).await;
}

#[tokio::test]
async fn unsafe_settings_are_logged_at_start_and_when_they_appear() {
    log();
    let server = PgServer::builder().durable(true).start().unwrap();
    let config = support::long_timeouts(&server.url());
    migrate(config.clone()).await.unwrap();
    let store = PgStore::connect(config.clone()).await.unwrap();
    assert_eq!(store.findings(), []);
    let lines = |text: &str| {
        let address = format!("address=\"{}", server.addr());
        let is_here = |line: &&str| line.contains(&address) && line.contains(text);
        log().text().lines().filter(is_here).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(lines("unsafe Postgres configuration"), Vec::<String>::new());
    server.psql("ALTER SYSTEM SET fsync = off").unwrap();
    server.psql("SELECT pg_reload_conf()").unwrap();
    change_is_logged(&store, &server, ["fsync=on ", "fsync=off "]).await;
    assert_eq!(lines("risk=\"fsync = off: a crash").len(), 1, "{}", log().text());
    // A correction is an event without a risk.
    server.psql("ALTER SYSTEM SET fsync = on").unwrap();
    server.psql("SELECT pg_reload_conf()").unwrap();
    change_is_logged(&store, &server, ["fsync=off ", "fsync=on "]).await;
    assert_eq!(lines(" risk=").len(), 1, "{}", log().text());

    server.psql("ALTER ROLE postgres SET synchronous_commit = off").unwrap();
    let store = PgStore::connect(config).await.unwrap();
    assert_eq!(store.findings()[0].kind, FindingKind::Durability);
    let logged = lines("unsafe Postgres configuration: synchronous_commit = off");
    assert_eq!(logged.len(), 1, "{}", log().text());
}

/// Signs a client certificate for a day, of which an hour is left.
fn sign_for_an_hour(authority: &Authority) {
    authority.sign("client", "DNS:client").unwrap();
    let library = campanile_programs::faketime::library()
        .expect("`cargo xtask install` installs libfaketime");
    let sign = "x509 -req -in client.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 1 \
        -extfile extensions -out client.crt";
    let output = Command::new("openssl")
        .args(sign.split_whitespace())
        .current_dir(authority.path("ca.crt").parent().unwrap())
        .env("LD_PRELOAD", library)
        .env("FAKETIME", "-23h")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
async fn client_certificate_that_expires_soon_is_logged() {
    log();
    let authority = Authority::new().unwrap();
    authority.sign("server", "IP:127.0.0.1").unwrap();
    let read = |file| authority.read(file).unwrap();
    let server = PgServer::builder()
        .tls(read("server.crt"), read("server.key"), Some(read("ca.crt")))
        .start()
        .unwrap();
    let warnings = || {
        let address = server.addr().to_string();
        let is_warning = |line: &&str| line.contains(&address) && line.contains("expires soon");
        log().text().lines().filter(is_warning).count()
    };
    let config = || {
        let config = support::long_timeouts(&server.url()).with_ca(read("ca.crt"));
        config.with_client_certificate(read("client.crt"), read("client.key"))
    };
    authority.sign("client", "DNS:client").unwrap();
    migrate(config()).await.unwrap();
    PgStore::connect(config()).await.unwrap();
    assert_eq!(warnings(), 0, "{}", log().text());
    sign_for_an_hour(&authority);
    let store = PgStore::connect(config()).await.unwrap();
    support::apply(&store, &support::key("a"), support::acquire(1)).await.unwrap();
    assert_eq!(warnings(), 1, "{}", log().text());
}

#[tokio::test]
async fn handlers_waiting_for_connections_are_logged_with_advice() {
    const FULL_POOL: &str = "1 of at most 1 connections";
    const REFUSED: &str = "too many connections for role";
    // Starts to capture.
    log();
    let fixture = Fixture::with_config(|config| config.with_inbox_connections(1)).await;
    let (began, resume) = (Notify::new(), Notify::new());
    let (began, resume): (&'static _, &'static _) =
        (Box::leak(began.into()), Box::leak(resume.into()));
    let service = fixture.layer().layer(service_fn(async |request| {
        began.notify_one();
        resume.notified().await;
        book(request).await
    }));
    let first = tokio::spawn(service.oneshot(request("b-1")));
    began.notified().await;
    book_once_logged(&fixture, "b-2", FULL_POOL, || resume.notify_one()).await;
    first.await.unwrap().unwrap();

    let fixture = fixture.without_inbox_connections().await;
    // With this wait, only a refusal is logged, however long it takes to open a connection.
    let max_wait = Duration::from_secs(1);
    let fixture = fixture.with(|inbox| inbox.with_max_reruns(u32::MAX).with_max_wait(max_wait));
    book_once_logged(&fixture, "b-3", REFUSED, || fixture.limit_connections(-1)).await;

    let lines = waits();
    for reason in [FULL_POOL, REFUSED] {
        let logged: Vec<_> = lines.iter().filter(|line| line.contains(reason)).collect();
        assert_eq!(logged.len(), 1, "{reason}: {lines:?}");
        for part in ["WARN", "PgConfig::with_inbox_connections"] {
            assert!(logged[0].contains(part), "no {part}: {}", logged[0]);
        }
    }
}

/// The lock is lost while a handler runs; its transaction is rolled back.
#[tokio::test]
async fn lost_lock_of_an_inbox_is_no_possible_double_effect() {
    let log = log();
    let fixture = Fixture::new().await;
    // Renewed every 4 s, and each call has 2 s.
    let short_lock = |config: IdempotencyConfig| config.with_lock_ttl(Duration::from_secs(12));
    let layer = fixture.inbox.layer(fixture.idempotency_layer_with(short_lock)).unwrap();
    let booked: &'static _ = Box::leak(Box::new(Notify::new()));
    let handler = service_fn(async |request| {
        book(request).await?;
        booked.notify_one();
        std::future::pending::<Result<(), BoxError>>().await
    });
    let mut running = tokio::spawn(layer.layer(handler).oneshot(request("b-1")));
    tokio::select! {
        () = booked.notified() => {}
        ended = &mut running => panic!("the handler has not booked: {ended:?}"),
    }
    // As by an operator.
    fixture.database.psql("UPDATE campanile.entry SET token = token + 1");
    timeout(EVENT_TIMEOUT, running).await.unwrap().unwrap().unwrap_err();
    assert_eq!(fixture.booked("b-1"), "0|0");
    let text = log.text();
    let lines: Vec<_> = text.lines().filter(|line| line.contains("lock lost")).collect();
    assert!(lines.len() == 1 && lines[0].contains("cause=Superseded"), "{text}");
    assert!(!text.contains("duplicate_effect_possible"), "{text}");
}
