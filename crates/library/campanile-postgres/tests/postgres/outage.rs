//! A server that is down, restarts, hangs, is busy, or becomes a replica.

use std::time::Duration;

use campanile_core::{FencingToken, Operation, Reply};
use campanile_idempotency::{Store, StoreErrorKind};
use campanile_postgres::{ConnectError, PgConfig, PgStore, migrate};
use campanile_test::{PgServer, Proxy, eventually};

use crate::support::{
    Database, acquire, acquire_grant, apply, apply_until_answered, chain, command, complete, key,
    long_timeouts, replies, short_timeouts,
};

/// Starts a server for one test, because the test kills it, and creates the schema.
async fn server() -> PgServer {
    let server = PgServer::start().unwrap();
    migrate(long_timeouts(&server.url())).await.unwrap();
    server
}

/// The server's sessions of a store [`with_application`].
const SESSIONS: &str =
    "FROM pg_stat_activity WHERE application_name = 'store' AND datname = current_database()";

fn with_application(database: &Database) -> PgConfig {
    PgConfig::new(format!("{}?application_name=store", database.url()))
}

#[tokio::test]
async fn connect_waits_for_a_server_that_is_not_up_yet() {
    let mut server = server().await;
    server.kill().unwrap();
    let connecting = tokio::spawn(PgStore::connect(long_timeouts(&server.url())));
    let server = tokio::task::spawn_blocking(move || {
        server.restart().unwrap();
        server
    });
    let store = connecting.await.unwrap().unwrap();
    acquire_grant(&store, &key("key"), 1).await;
    drop(server.await.unwrap());
}

#[tokio::test]
async fn connect_waits_again_if_its_connection_is_lost() {
    let database = Database::new().await;
    let client = database.client().await;
    // The check of the schema waits for this lock.
    client.batch_execute("BEGIN; LOCK campanile.migration").await.unwrap();
    let connecting = tokio::spawn(PgStore::connect(database.config()));
    let waiting =
        "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    database.wait_for(&format!("SELECT count(*) = 1 {waiting}")).await;
    database.psql(&format!("SELECT pg_terminate_backend(pid) {waiting}"));
    client.batch_execute("COMMIT").await.unwrap();
    connecting.await.unwrap().unwrap();
}

#[tokio::test]
async fn connect_timeout_error_names_address_and_cause() {
    let port = campanile_test::free_port().unwrap();
    let config = short_timeouts(&format!("postgres://nobody@127.0.0.1:{port}/nowhere"));
    let config = config.with_connect_timeout(Duration::from_secs(3));
    let error = PgStore::connect(config).await.unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { source: Some(_), .. }), "{error:?}");
    let text = chain(&error);
    assert!(text.contains(&format!("127.0.0.1:{port}/nowhere")), "{text}");
    assert!(text.contains("refused"), "{text}");
}

#[tokio::test]
async fn server_restart_causes_no_error() {
    let mut server = server().await;
    let store = PgStore::connect(long_timeouts(&server.url())).await.unwrap();
    let keys: Vec<_> = (0..3).map(|n| key(n.to_string())).collect();
    for key in &keys {
        let grant = acquire_grant(&store, key, 1).await;
        server.restart().unwrap();
        assert_eq!(apply(&store, key, complete(grant, b"done")).await.unwrap(), Reply::Completed);
    }
    server.restart().unwrap();
    let batch = keys.iter().map(|key| command(key, acquire(2))).collect();
    for reply in replies(store.apply_batch(batch).await) {
        assert!(matches!(reply, Reply::Duplicate { attempt: 1, .. }), "{reply:?}");
    }
}

#[tokio::test]
async fn server_outage_fails_calls_at_once_and_ends_with_restart() {
    let mut server = server().await;
    let store = PgStore::connect(long_timeouts(&server.url())).await.unwrap();
    acquire_grant(&store, &key("before"), 1).await;
    server.kill().unwrap();
    for _ in 0..3 {
        let error = apply(&store, &key("while"), acquire(1)).await.unwrap_err();
        // Not a timeout: the timeout of this store is a minute.
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(chain(&error).contains(&server.addr().to_string()), "{}", chain(&error));
    }
    server.restart().unwrap();
    acquire_grant(&store, &key("after"), 1).await;
}

#[tokio::test]
async fn command_with_lost_answer_is_repeatable_and_counts_once() {
    let server = server().await;
    let proxy = Proxy::to(server.addr()).unwrap();
    let config = short_timeouts(&server.url_through(proxy.addr()));
    // Long enough for the server to execute the command, which it limits, too.
    let config = config.with_command_timeout(Duration::from_secs(2));
    let store = PgStore::connect(config).await.unwrap();
    let key = key("key");
    apply_until_answered(&store, &crate::support::key("other"), acquire(1)).await;
    proxy.swallow_replies();
    let error = apply(&store, &key, acquire(1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    let attempts = || server.psql("SELECT count(*) FROM campanile.entry").unwrap();
    eventually(Duration::from_secs(30), || (attempts() == "2").then_some(())).expect("applied");
    proxy.heal().unwrap();
    let reply = apply_until_answered(&store, &key, acquire(1)).await;
    let Reply::Acquired { token, attempt: 1, .. } = reply else {
        panic!("the owner did not get its own grant: {reply:?}");
    };
    let grant = crate::support::grant(token, 1);

    assert_eq!(
        apply_until_answered(&store, &key, complete(grant, b"done")).await,
        Reply::Completed
    );
}

#[tokio::test]
async fn connection_broken_during_a_command_causes_no_error() {
    let server = server().await;
    let proxy = Proxy::to(server.addr()).unwrap();
    let store = PgStore::connect(long_timeouts(&server.url_through(proxy.addr()))).await.unwrap();
    acquire_grant(&store, &key("other"), 1).await;
    proxy.swallow_replies();
    let breaking = async {
        while proxy.swallowed() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Closes the connection that has lost bytes.
        proxy.heal().unwrap();
    };
    let key = key("key");
    let (reply, ()) = tokio::join!(apply(&store, &key, acquire(1)), breaking);
    assert!(matches!(reply.unwrap(), Reply::Acquired { attempt: 1, .. }));
}

#[tokio::test]
async fn command_without_a_second_connection_was_possibly_sent() {
    let mut server = server().await;
    let proxy = Proxy::to(server.addr()).unwrap();
    let store = PgStore::connect(long_timeouts(&server.url_through(proxy.addr()))).await.unwrap();
    acquire_grant(&store, &key("other"), 1).await;
    proxy.swallow_replies();
    let breaking = async {
        while proxy.swallowed() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.kill().unwrap();
        proxy.heal().unwrap();
    };
    let key = key("key");
    let (answer, ()) = tokio::join!(apply(&store, &key, acquire(1)), breaking);
    let error = answer.unwrap_err();
    assert!(format!("{error:?}").contains("was_sent: true"), "{error:?}");
}

#[tokio::test]
async fn call_to_a_hung_server_times_out() {
    let server = server().await;
    let proxy = Proxy::to(server.addr()).unwrap();
    let config = || short_timeouts(&server.url_through(proxy.addr()));
    let connected = PgStore::connect(config()).await.unwrap();
    apply_until_answered(&connected, &key("held"), acquire(1)).await;
    // `connected` has a connection; `unconnected` has to open one while the server hangs.
    let unconnected = PgStore::connect(config()).await.unwrap();
    proxy.swallow_requests();
    for (store, kind) in [
        (&connected, StoreErrorKind::Timeout),
        // `Unavailable`, because nothing was sent.
        (&unconnected, StoreErrorKind::Unavailable),
    ] {
        let batch = vec![command(&key("held"), acquire(1)), command(&key("b"), acquire(1))];
        let answers = tokio::time::timeout(Duration::from_secs(30), store.apply_batch(batch)).await;
        for answer in answers.expect("in time") {
            assert_eq!(answer.unwrap_err().kind(), kind);
        }
    }
    proxy.heal().unwrap();
    for store in [&connected, &unconnected] {
        let reply = apply_until_answered(store, &key("held"), acquire(1)).await;
        assert!(matches!(reply, Reply::Acquired { attempt: 1, .. }), "{reply:?}");
    }
}

#[tokio::test]
async fn locked_row_times_out_the_call_and_the_servers_statement() {
    let database = Database::new().await;
    let store = PgStore::connect(short_timeouts(database.url())).await.unwrap();
    let key = key("key");
    apply_until_answered(&store, &key, acquire(1)).await;
    let other = database.client().await;
    other.batch_execute("BEGIN; SELECT * FROM campanile.entry FOR UPDATE").await.unwrap();
    let error = apply(&store, &key, acquire(1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout, "{}", chain(&error));
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
        AND wait_event_type = 'Lock'";
    let is_cancelled = || (database.psql(waiting) == "0").then_some(());
    eventually(Duration::from_secs(30), is_cancelled).expect("the server cancels the statement");
    other.batch_execute("ROLLBACK").await.unwrap();
    let reply = apply_until_answered(&store, &key, acquire(1)).await;
    assert!(matches!(reply, Reply::Acquired { attempt: 1, .. }), "{reply:?}");
}

#[tokio::test]
async fn locked_row_fails_no_other_command_of_its_batch() {
    let database = Database::new().await;
    // A fifth of it is the wait for the locked row, and the rest is for the other commands.
    let config = with_application(&database).with_command_timeout(Duration::from_secs(10));
    let store = PgStore::connect(config.with_connections(1)).await.unwrap();
    let keys: Vec<_> = (0..8).map(|n| key(n.to_string())).collect();
    let mut renewals = Vec::new();
    for key in &keys {
        let grant = acquire_grant(&store, key, 1).await;
        let renewal = Operation::Renew { grant, ttl: Duration::from_secs(30) };
        renewals.push(command(key, renewal));
    }
    let other = database.client().await;
    let row = "BEGIN; SELECT FROM campanile.entry ORDER BY created LIMIT 1 FOR UPDATE";
    other.batch_execute(row).await.unwrap();
    let session = format!("SELECT pid {SESSIONS}");
    let pid = database.psql(&session);
    let mut answers = store.apply_batch(renewals).await;
    assert_eq!(answers.remove(0).unwrap_err().kind(), StoreErrorKind::Timeout);
    assert!(replies(answers).iter().all(|reply| *reply == Reply::Renewed));
    assert_eq!(
        apply(&store, &keys[0], acquire(2)).await.unwrap_err().kind(),
        StoreErrorKind::Timeout
    );
    // The connection is still good.
    assert_eq!(database.psql(&session), pid);
}

#[tokio::test]
async fn call_without_a_free_connection_fails_unsent() {
    let database = Database::new().await;
    let key = key("key");
    acquire_grant(&database.store().await, &key, 1).await;
    let config = short_timeouts(database.url()).with_connections(1);
    let store = PgStore::connect(config).await.unwrap();
    database.psql(
        "CREATE OR REPLACE FUNCTION campanile.hold(space text, keys bytea[], tokens bigint[], \
         owners bigint[]) RETURNS tid[] LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); END $$",
    );
    let elsewhere = crate::support::key("elsewhere");
    let release = Operation::Cancel { owner: crate::support::owner(1) };
    let (first, second) =
        tokio::join!(apply(&store, &key, release), apply(&store, &elsewhere, acquire(1)));
    first.unwrap_err();
    // The call waited for half of its time.
    let error = second.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{}", chain(&error));
    assert!(chain(&error).contains("waiting for a connection to Postgres"), "{}", chain(&error));
    assert_eq!(database.psql("SELECT count(*) FROM campanile.entry"), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn promoted_replica_is_found_with_its_entries() {
    let mut primary = server().await;
    let replica = primary.replica().unwrap();
    let replica_only =
        long_timeouts(&replica.url()).with_connect_timeout(Duration::from_millis(500));
    let error = PgStore::connect(replica_only).await.unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");

    let url = format!("postgres://postgres@{},{}/postgres", primary.addr(), replica.addr());
    let store = PgStore::connect(long_timeouts(&url)).await.unwrap();
    let key = key("key");
    let grant = acquire_grant(&store, &key, 1).await;
    let has_entry =
        || (replica.psql("SELECT count(*) FROM campanile.entry").unwrap() == "1").then_some(());
    eventually(Duration::from_secs(60), has_entry).expect("the replica follows");
    primary.kill().unwrap();
    assert_eq!(
        apply(&store, &key, complete(grant, b"done")).await.unwrap_err().kind(),
        StoreErrorKind::Unavailable
    );
    replica.psql("SELECT pg_promote()").unwrap();
    // A completion would also create the entry.
    let reply = apply_until_answered(&store, &key, acquire(2)).await;
    assert!(matches!(reply, Reply::Locked { .. }), "{reply:?}");
    assert_eq!(
        apply_until_answered(&store, &key, complete(grant, b"done")).await,
        Reply::Completed
    );
}

#[tokio::test]
async fn read_only_server_is_retried_once_and_error_has_advice() {
    let database = Database::new().await;
    let config = with_application(&database).with_command_timeout(Duration::from_secs(60));
    let store = PgStore::connect(config).await.unwrap();
    database.psql(
        "CREATE SEQUENCE tries; CREATE OR REPLACE FUNCTION campanile.hold(space text, \
         keys bytea[], tokens bigint[], owners bigint[]) RETURNS tid[] LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('public.tries'); \
         RAISE 'as on a replica' USING ERRCODE = '25006'; END $$",
    );
    let held = crate::support::grant(FencingToken::ZERO, 1);
    let error = apply(&store, &key("key"), complete(held, b"")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(chain(&error).contains("name all servers in the URL"), "{}", chain(&error));
    assert_eq!(database.psql("SELECT last_value FROM tries"), "2");
    // Both connections are closed.
    database.wait_for(&format!("SELECT count(*) = 0 {SESSIONS}")).await;
}

#[tokio::test]
async fn dropped_schema_error_says_what_to_run() {
    let database = Database::new().await;
    let store = database.store().await;
    acquire_grant(&store, &key("key"), 1).await;
    database.psql("DROP SCHEMA campanile CASCADE");
    let error = apply(&store, &key("key"), acquire(1)).await.unwrap_err();
    assert!(chain(&error).contains("run `campanile_postgres::migrate`"), "{}", chain(&error));
    migrate(database.config()).await.unwrap();
    acquire_grant(&store, &key("key"), 1).await;
}
