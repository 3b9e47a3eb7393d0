//! A Postgres that keeps everything it has acknowledged.

use std::thread;
use std::time::Duration;

use campanile::postgres::migrate;
use campanile_test::history::FaultKind;
use campanile_test::{PgServer, Proxy, eventually};

use super::clock::random_step;
use super::{RECONNECT, Store, network};
use crate::TIMEOUT;
use crate::faults::Injector;

/// How many sessions a process has at most while calls hang in the server, as docs/kubernetes.md says.
const MAX_SESSIONS: usize = 12;

pub(crate) struct Postgres {
    /// A synchronous standby, without which no commit ends.
    standby: Option<PgServer>,
    server: PgServer,
    proxy: Proxy,
    has_clock: bool,
    violations: Vec<String>,
}

impl Postgres {
    /// Starts a server with the schema of the store, a clock that the campaign can set, and a synchronous
    /// standby.
    pub(crate) fn start_with_clock_and_standby() -> Self {
        let mut postgres = Self::start(true);
        postgres.standby = Some(postgres.server.replica().unwrap());
        postgres.psql("ALTER SYSTEM SET synchronous_standby_names = '*'");
        postgres.psql("SELECT pg_reload_conf()");
        postgres.wait_for_standby();
        postgres
    }

    /// Starts a server with the schema of the store and these tables.
    pub(crate) fn start_with_tables(sql: &str) -> Self {
        let postgres = Self::start(false);
        postgres.psql(sql);
        postgres
    }

    fn start(has_clock: bool) -> Self {
        // Sessions of killed processes end a moment later.
        let server = PgServer::builder()
            .config("max_connections", "400")
            // A standby soon returns.
            .config("wal_retrieve_retry_interval", "200ms")
            .start()
            .unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(migrate(server.url())).unwrap();
        let proxy = Proxy::to(server.addr()).unwrap();
        Self { standby: None, server, proxy, has_clock, violations: Vec::new() }
    }

    fn psql(&self, sql: &str) -> String {
        self.server.psql(sql).unwrap()
    }

    /// Sets the clock of the store's functions.
    fn step_clock(&self, injector: &mut Injector<'_>) {
        let seconds = random_step(injector);
        let by = seconds * 1_000_000;
        injector.inject("clock stepped", &FaultKind::ClockStepped { by }, RECONNECT, |_| {
            self.psql(&format!(
                "DO $do$ DECLARE f record; BEGIN FOR f IN SELECT pg_get_functiondef(oid) AS text \
                 FROM pg_proc WHERE pronamespace = 'campanile'::regnamespace LOOP \
                 EXECUTE replace(f.text, 'clock_timestamp()', \
                 '(clock_timestamp() + interval ''{seconds} seconds'')'); \
                 END LOOP; END $do$",
            ));
        });
    }

    /// Waits until commits end.
    fn wait_for_standby(&self) {
        if self.standby.is_none() {
            return;
        }
        let count = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        let is_there = || (self.server.psql(count).ok()? == "1").then_some(());
        eventually(TIMEOUT, is_there).expect("the standby follows");
    }

    /// Stops the standby for a while.
    fn lose_standby(&mut self, injector: &mut Injector<'_>) {
        let kind = FaultKind::StoreUnavailable;
        injector.inject("standby lost", &kind, RECONNECT, |injector| {
            self.standby.as_mut().expect("checked").kill().unwrap();
            injector.sleep(100..20_000);
            // Each process has another name, and the sessions of one that was killed wait for their commits.
            let sessions = self.psql(
                "SELECT count(*), application_name FROM pg_stat_activity \
                 WHERE backend_type = 'client backend' GROUP BY 2 ORDER BY 1 DESC LIMIT 1",
            );
            let count = sessions.split('|').next().and_then(|count| count.parse::<usize>().ok());
            if count.is_none_or(|count| count > MAX_SESSIONS) {
                let all = self.psql(
                    "SELECT application_name, pid, backend_start, now(), state, wait_event, state_change, \
                     left(query, 60) FROM pg_stat_activity WHERE backend_type = 'client backend' \
                     ORDER BY 1, 3",
                );
                self.violations.push(format!("sessions without standby: {sessions}:\n{all}"));
            }
            self.standby.as_mut().expect("checked").restart().unwrap();
            self.wait_for_standby();
        });
    }

    /// Kills the server a moment after commits were made asynchronous, which loses some of them.
    fn make_commits_asynchronous(&mut self, injector: &mut Injector<'_>) {
        let name = "commits made asynchronous";
        if !injector.faults.allows(name) {
            return;
        }
        let (from, lost) = (injector.now(), injector.millis(0..1_000));
        injector.inject(name, &FaultKind::StoreUnavailable, RECONNECT, |_| {
            self.psql("ALTER SYSTEM SET synchronous_commit = off");
            self.psql("SELECT pg_reload_conf()");
            thread::sleep(lost);
            self.server.kill().unwrap();
            self.server.restart().unwrap();
            self.wait_for_standby();
            self.psql("ALTER SYSTEM RESET synchronous_commit");
            self.psql("SELECT pg_reload_conf()");
        });
        injector.record(from, Duration::ZERO, &FaultKind::StoreLostWrites);
    }

    /// Terminates half of the sessions.
    fn terminate_sessions(&self, injector: &mut Injector<'_>) {
        let kind = FaultKind::StoreSessionsEnded;
        injector.inject("sessions terminated", &kind, Duration::ZERO, |_| {
            self.psql(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                 WHERE backend_type = 'client backend' AND application_name <> 'psql' \
                 AND random() < 0.5",
            );
        });
    }
}

impl Store for Postgres {
    fn url(&self) -> String {
        self.server.url_through(self.proxy.addr())
    }

    fn direct_url(&self) -> String {
        self.server.url()
    }

    fn query(&self, sql: &str) -> String {
        self.psql(sql)
    }

    fn violations(&self) -> &[String] {
        &self.violations
    }

    fn inject(&mut self, injector: &mut Injector<'_>) {
        match injector.rng.u8(..12) {
            0..3 => {
                let kind = FaultKind::StoreUnavailable;
                injector.inject("store killed", &kind, RECONNECT, |injector| {
                    self.server.kill().unwrap();
                    injector.sleep(0..3_000);
                    self.server.restart().unwrap();
                    self.wait_for_standby();
                });
            }
            3 => self.terminate_sessions(injector),
            4 if self.has_clock => self.step_clock(injector),
            5..7 if self.standby.is_some() => self.lose_standby(injector),
            7 if self.standby.is_some() => self.make_commits_asynchronous(injector),
            _ => network::inject(&self.proxy, injector),
        }
    }
}
