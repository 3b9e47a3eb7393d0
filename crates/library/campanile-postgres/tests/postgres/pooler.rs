//! PgBouncer between the store and the server.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use campanile_idempotency::StoreErrorKind;
use campanile_postgres::{ConnectError, PgStore, migrate};
use campanile_test::{PgServer, Process, eventually, free_port};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls};

use crate::support::{acquire, acquire_grant, apply, chain, key, long_timeouts};

/// As many sessions as the pooler opens for a user.
const SESSIONS: usize = 10;

struct Pooler {
    process: Process,
    port: u16,
    folder: PathBuf,
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Pooler {
    fn start(server: &PgServer, mode: &str) -> Self {
        let port = free_port().unwrap();
        let folder = std::env::temp_dir().join(format!("campanile-pgbouncer-{port}"));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let users = folder.join("users.txt");
        fs::write(&users, "\"postgres\" \"\"\n").unwrap();
        let config = folder.join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nauth_type = trust\nauth_file = {}\npool_mode = {mode}\n\
             default_pool_size = {SESSIONS}\nmax_client_conn = 500\nunix_socket_dir =\n",
            server.port(),
            users.display(),
        );
        fs::write(&config, text).unwrap();
        // Debian's folder for it is not in the path of every user.
        let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap());
        let mut command = Command::new("env");
        command.arg(format!("PATH={path}")).arg("pgbouncer");
        // It refuses to run as root.
        if fs::metadata(&folder).unwrap().uid() == 0 {
            command.args(["-u", "nobody"]);
        }
        let mut process = Process::spawn(command.arg(&config), folder.join("log")).unwrap();
        let is_up = || {
            let exited = process.exited().unwrap();
            assert!(exited.is_none(), "run `cargo xtask install`: {}", process.log().unwrap());
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok().then_some(())
        };
        let up = eventually(Duration::from_secs(30), is_up);
        up.unwrap_or_else(|| panic!("{}", process.log().unwrap()));
        Self { process, port, folder }
    }

    fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    async fn client(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// Changes the mode, for new transactions.
    fn set_mode(&self, from: &str, to: &str) {
        let config = self.folder.join("pgbouncer.ini");
        let [from, to] = [from, to].map(|mode| format!("pool_mode = {mode}\n"));
        fs::write(&config, fs::read_to_string(&config).unwrap().replace(&from, &to)).unwrap();
        let pid = self.process.pid().to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    }

    /// Keeps all sessions busy.
    async fn load(&self) -> JoinSet<()> {
        let mut load = JoinSet::new();
        for _ in 0..3 * SESSIONS {
            let client = self.client().await;
            load.spawn(async move {
                loop {
                    client.batch_execute("SELECT pg_sleep(0.002)").await.unwrap();
                }
            });
        }
        load
    }

    /// The settings that other applications find in the sessions, without duplicates.
    async fn settings(&self) -> Vec<String> {
        const SETTINGS: &str = "SELECT concat_ws(' ', current_setting('statement_timeout'), \
            current_setting('lock_timeout'), current_setting('default_transaction_read_only'), \
            current_setting('default_transaction_isolation'), current_setting('tcp_keepalives_idle'))";
        let (mut found, mut open) = (Vec::new(), Vec::new());
        // Each has a session of its own.
        for _ in 0..SESSIONS {
            let client = self.client().await;
            client.batch_execute("BEGIN").await.unwrap();
            found.push(client.query_one(SETTINGS, &[]).await.unwrap().get(0));
            open.push(client);
        }
        found.sort();
        found.dedup();
        found
    }
}

fn server() -> PgServer {
    let server = PgServer::builder().config("default_transaction_isolation", "serializable");
    server.start().unwrap()
}

async fn assert_refused_without_a_trace(pooler: &Pooler, connects: usize) {
    for _ in 0..connects {
        let error = PgStore::connect(long_timeouts(&pooler.url())).await.unwrap_err();
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
        assert!(chain(&error).contains("pool_mode = session"), "{error:?}");
    }
}

#[tokio::test]
async fn transaction_pooler_is_refused_idle_and_busy_without_a_trace() {
    let server = server();
    migrate(long_timeouts(&server.url())).await.unwrap();
    let pooler = Pooler::start(&server, "transaction");
    let before = pooler.settings().await;
    assert_eq!(before.len(), 1, "{before:?}");
    assert_refused_without_a_trace(&pooler, 3).await;
    assert_eq!(pooler.settings().await, before);
    let mut load = pooler.load().await;
    assert_refused_without_a_trace(&pooler, 10).await;
    load.shutdown().await;
    assert_eq!(pooler.settings().await, before);
}

#[tokio::test]
async fn pooler_that_begins_to_share_sessions_is_a_misconfigured_store() {
    let server = server();
    migrate(long_timeouts(&server.url())).await.unwrap();
    let pooler = Pooler::start(&server, "session");
    let store = PgStore::connect(long_timeouts(&pooler.url())).await.unwrap();
    pooler.set_mode("session", "transaction");
    let _load = pooler.load().await;
    // After which the store opens new connections.
    const TERMINATE: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
        WHERE query ~ 'campanile' AND state = 'idle' AND pid <> pg_backend_pid()";
    let mut number = 0;
    let error = loop {
        server.psql(TERMINATE).unwrap();
        number += 1;
        let key = key(format!("key-{number}"));
        match timeout(Duration::from_secs(60), apply(&store, &key, acquire(1))).await.unwrap() {
            Err(error) if error.kind() == StoreErrorKind::Misconfigured => break error,
            _ => assert!(number < 1_000, "no connection has met another session"),
        }
    };
    assert!(chain(&error).contains("pool_mode = session"), "{error:?}");
}

#[tokio::test]
async fn pooler_that_begins_to_share_open_sessions_is_a_misconfigured_store() {
    let server = server();
    migrate(long_timeouts(&server.url())).await.unwrap();
    let pooler = Pooler::start(&server, "session");
    let store = PgStore::connect(long_timeouts(&pooler.url())).await.unwrap();
    acquire_grant(&store, &key("opens a connection"), 1).await;
    pooler.set_mode("session", "transaction");
    let _load = pooler.load().await;
    let calling = async {
        for number in 0.. {
            match apply(&store, &key(format!("key-{number}")), acquire(1)).await {
                Err(error) if error.kind() == StoreErrorKind::Misconfigured => return error,
                _ => sleep(Duration::from_millis(50)).await,
            }
        }
        unreachable!("the numbers do not end");
    };
    let error = timeout(Duration::from_secs(60), calling).await.expect("the session is foreign");
    assert!(chain(&error).contains("pool_mode = session"), "{error:?}");
}

#[tokio::test]
async fn migration_through_a_pooler_leaves_no_setting() {
    let server = server();
    let pooler = Pooler::start(&server, "transaction");
    let before = pooler.settings().await;
    migrate(long_timeouts(&pooler.url())).await.unwrap();
    assert_eq!(pooler.settings().await, before);
}

#[tokio::test]
async fn session_pooler_is_accepted() {
    let server = server();
    migrate(long_timeouts(&server.url())).await.unwrap();
    let pooler = Pooler::start(&server, "session");
    let store = PgStore::connect(long_timeouts(&pooler.url())).await.unwrap();
    acquire_grant(&store, &key("key"), 1).await;
}
