//! A synchronous standby is lost, so that commits wait for it, until an operator cancels the wait or
//! does without the standby.

use std::time::Duration;

use campanile_core::{BoxError, Output, Reply};
use campanile_idempotency::Store;
use campanile_postgres::{Inbox, PgConfig, PgStore, Transaction, migrate};
use campanile_test::PgServer;
use futures_util::future::join_all;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::NoTls;
use tower::service_fn;

use crate::support::{
    EVENT_TIMEOUT, acquire, acquire_grant, apply, apply_until_answered, command, complete, key,
    long_timeouts, replies, short_timeouts,
};

/// The sessions of a store that wait for the standby.
const WAITING: &str =
    "FROM pg_stat_activity WHERE application_name = 'store' AND wait_event = 'SyncRep'";

/// A server without its standby; each test has one, because the setting is one of the server.
struct Fixture {
    server: PgServer,
}

impl Fixture {
    async fn new() -> Self {
        let server = PgServer::start().unwrap();
        migrate(long_timeouts(&server.url())).await.unwrap();
        Self { server }
    }

    async fn store(&self, settings: fn(&str) -> PgConfig) -> PgStore {
        let config = settings(&format!("{}?application_name=store", self.server.url()));
        PgStore::connect(config.with_connections(3).with_inbox_connections(3)).await.unwrap()
    }

    /// Requires a standby that does not exist, and returns once commits wait for it.
    async fn require_standby(&self) {
        self.set_standby("ghost");
        let url = format!("{}?application_name=probe", self.server.url());
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        let committing = async {
            client.batch_execute("SET synchronous_commit = on").await.unwrap();
            while client
                .batch_execute("SELECT pg_logical_emit_message(true, 'probe', '')")
                .await
                .is_ok()
            {}
        };
        let probe =
            "FROM pg_stat_activity WHERE application_name = 'probe' AND wait_event = 'SyncRep'";
        tokio::select! {
            _ = connection => panic!("the connection is lost"),
            () = committing => panic!("the commit fails"),
            () = self.wait_for(1, probe) => {}
        }
    }

    fn set_standby(&self, name: &str) {
        self.server
            .psql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'"))
            .unwrap();
        self.server.psql("SELECT pg_reload_conf()").unwrap();
    }

    fn count(&self, sessions: &str) -> u32 {
        self.server.psql(&format!("SELECT count(*) {sessions}")).unwrap().parse().unwrap()
    }

    async fn wait_for(&self, count: u32, sessions: &str) {
        let polling = async {
            while self.count(sessions) != count {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(EVENT_TIMEOUT, polling).await.expect("that many commits wait");
    }

    fn cancel_waits(&self) {
        self.server.psql(&format!("SELECT pg_cancel_backend(pid) {WAITING}")).unwrap();
    }

    /// Asserts that the call waits for the standby, also after a wait was cancelled; and returns its
    /// reply once there is none to wait for.
    async fn reply_without_standby<T>(&self, mut call: JoinHandle<T>) -> T {
        self.wait_for(1, WAITING).await;
        self.cancel_waits();
        tokio::select! {
            biased;
            _ = &mut call => panic!("answered without a standby"),
            // The call is repeated over another connection.
            () = self.wait_for(1, WAITING) => {}
        }
        self.set_standby("");
        timeout(EVENT_TIMEOUT, call).await.expect("answered").unwrap()
    }
}

#[tokio::test]
async fn abandoned_sessions_count_until_the_server_ends_them() {
    let fixture = Fixture::new().await;
    let store = fixture.store(short_timeouts).await;
    acquire_grant(&store, &key("before"), 1).await;
    fixture.require_standby().await;
    for round in 0..10 {
        let keys: Vec<_> = (0..4).map(|n| key(format!("{round}-{n}"))).collect();
        let calls = join_all(keys.iter().map(|key| apply(&store, key, acquire(1)))).await;
        assert!(calls.iter().all(Result::is_err));
        assert!(fixture.count(WAITING) <= 3);
        // One more asks whether the others have ended.
        assert!(fixture.count("FROM pg_stat_activity WHERE application_name = 'store'") <= 4);
    }
    fixture.set_standby("");
    let reply = apply_until_answered(&store, &key("0-0"), acquire(1)).await;
    assert!(matches!(reply, Reply::Acquired { attempt: 1, .. }), "{reply:?}");
}

#[tokio::test]
async fn abandoned_transactions_of_an_inbox_count_until_the_server_ends_them() {
    let fixture = Fixture::new().await;
    let store = fixture.store(short_timeouts).await;
    fixture.server.psql("CREATE TABLE ledger (id text)").unwrap();
    let inbox = Inbox::new(&store).unwrap();
    let runner = inbox.runner("ledger").unwrap();
    let book = async |tx: Transaction| {
        tx.execute("INSERT INTO ledger VALUES ('a')", &[]).await?;
        // Only the commits of handlers wait for the standby.
        tx.execute("SET LOCAL synchronous_commit = on", &[]).await?;
        Ok::<_, BoxError>(())
    };
    fixture.server.psql("ALTER ROLE postgres SET synchronous_commit = local").unwrap();
    fixture.require_standby().await;
    for n in 0..8 {
        let run = runner.run(format!("b-{n}"), book);
        drop(timeout(Duration::from_secs(1), run).await);
        assert!(fixture.count(WAITING) <= 3);
    }
    fixture.set_standby("");
    let run = async { while runner.run("last", book).await.is_err() {} };
    timeout(EVENT_TIMEOUT, run).await.expect("the inbox recovers");
}

#[tokio::test]
async fn relay_publishes_no_message_without_a_standby() {
    let fixture = Fixture::new().await;
    let store = fixture.store(long_timeouts).await;
    fixture.require_standby().await;
    let url = fixture.server.url();
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let publish = "SELECT campanile.publish('bills', NULL, NULL, NULL, '{}', '{}')";
    let written = tokio::spawn(async move { client.batch_execute(publish).await });
    let publishing =
        "FROM pg_stat_activity WHERE query LIKE '%publish%' AND wait_event = 'SyncRep'";
    fixture.wait_for(1, publishing).await;
    fixture.server.psql(&format!("SELECT pg_cancel_backend(pid) {publishing}")).unwrap();
    written.await.unwrap().unwrap();

    let (published, mut messages) = mpsc::unbounded_channel();
    let publisher = service_fn(move |message: Output| {
        let published = published.clone();
        async move { published.send(message) }
    });
    let relay = Inbox::new(&store).unwrap().relay(publisher, std::future::pending());
    let relay = tokio::spawn(relay);
    fixture.wait_for(1, WAITING).await;
    assert!(messages.try_recv().is_err());
    fixture.set_standby("");
    assert_eq!(&*timeout(EVENT_TIMEOUT, messages.recv()).await.unwrap().unwrap().topic, "bills");
    relay.abort();
}

#[tokio::test]
async fn answers_after_a_cancelled_wait_have_a_standby() {
    let fixture = Fixture::new().await;
    let store = fixture.store(long_timeouts).await;
    let grant = acquire_grant(&store, &key("key"), 1).await;
    fixture.require_standby().await;
    // The first answer, and each answer that only repeats it.
    let completion = command(&key("key"), complete(grant, b"done"));
    for _ in 0..2 {
        let (calling, completion) = (store.clone(), completion.clone());
        let call = tokio::spawn(async move { calling.apply(completion).await });
        let answer = fixture.reply_without_standby(call).await.unwrap();
        assert_eq!(answer.reply, Reply::Completed);
        fixture.require_standby().await;
    }
    let calling = store.clone();
    let batch = vec![command(&key("key"), acquire(2))];
    let call = tokio::spawn(async move { replies(calling.apply_batch(batch).await) });
    let found = fixture.reply_without_standby(call).await;
    assert!(matches!(found[..], [Reply::Duplicate { .. }]), "{found:?}");
}
