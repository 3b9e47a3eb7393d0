//! A Postgres that keeps everything it has acknowledged.

use std::time::Duration;

use campanile::postgres::migrate;
use campanile_test::history::FaultKind;
use campanile_test::{PgServer, Proxy};

use super::{RECONNECT, Store, network};
use crate::faults::Injector;

pub(crate) struct Postgres {
    server: PgServer,
    proxy: Proxy,
    has_clock: bool,
}

impl Postgres {
    /// Starts a server with the schema of the store, and a clock that the campaign can set.
    pub(crate) fn start_with_clock() -> Self {
        Self::start(true)
    }

    /// Starts a server with the schema of the store and these tables.
    pub(crate) fn start_with_tables(sql: &str) -> Self {
        let postgres = Self::start(false);
        postgres.psql(sql);
        postgres
    }

    fn start(has_clock: bool) -> Self {
        // Sessions of killed processes end a moment later.
        let server = PgServer::builder().config("max_connections", "400").start().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(migrate(server.url())).unwrap();
        let proxy = Proxy::to(server.addr()).unwrap();
        Self { server, proxy, has_clock }
    }

    fn psql(&self, sql: &str) -> String {
        self.server.psql(sql).unwrap()
    }

    /// Sets the clock of the store's functions ahead.
    fn step_clock(&self, injector: &mut Injector<'_>) {
        let seconds = injector.rng.u64(1..9);
        let by = Duration::from_secs(seconds).as_micros() as i64;
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

    /// Terminates half of the sessions.
    fn terminate_sessions(&self, injector: &mut Injector<'_>) {
        let kind = FaultKind::StoreSessionsEnded;
        injector.inject("sessions terminated", &kind, Duration::ZERO, |_| {
            self.psql(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                 WHERE application_name = 'campanile' AND random() < 0.5",
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

    fn inject(&mut self, injector: &mut Injector<'_>) {
        match injector.rng.u8(..8) {
            0..3 => {
                let kind = FaultKind::StoreUnavailable;
                injector.inject("store killed", &kind, RECONNECT, |injector| {
                    self.server.kill().unwrap();
                    injector.sleep(0..3_000);
                    self.server.restart().unwrap();
                });
            }
            3 => self.terminate_sessions(injector),
            4 if self.has_clock => self.step_clock(injector),
            _ => network::inject(&self.proxy, injector),
        }
    }
}
