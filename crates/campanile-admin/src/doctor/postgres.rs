//! The server of a Postgres store.

use std::time::{Duration, SystemTime};

use campanile_core::{Namespace, error};
use campanile_idempotency::Store;
use campanile_postgres::tokio_postgres::{self, Row};
use campanile_postgres::{ConnectError, PgConfig, PgStore};

use super::finding::{FindingKind, Severity};
use super::store::check_namespace;
use super::{Deployment, Report, display};
use crate::error::chain;

const SUBJECT: &str = "Postgres";

/// The settings as they apply to the store's user and database, the time, and whether there are
/// standbys and all of them follow asynchronously.
const QUERY: &str = "SELECT \
    pg_catalog.current_setting('synchronous_commit'), \
    pg_catalog.current_setting('fsync'), \
    pg_catalog.current_setting('full_page_writes'), \
    pg_catalog.current_setting('autovacuum'), \
    (SELECT setting::bigint FROM pg_catalog.pg_settings \
        WHERE name = 'idle_in_transaction_session_timeout'), \
    (SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'transaction_timeout'), \
    (SELECT pg_catalog.bool_and(sync_state = 'async') FROM pg_catalog.pg_stat_replication), \
    pg_catalog.clock_timestamp()";

/// The largest accepted difference between the server's clock and this machine's.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(1);

pub(super) async fn examine(
    config: &PgConfig,
    namespace: Namespace,
    deployment: &Deployment,
    report: &mut Report,
) -> Option<Duration> {
    let store = match PgStore::connect(config.clone()).await {
        Ok(store) => store,
        Err(error) => {
            add_error(&error, report);
            return None;
        }
    };
    let before = now();
    match config.query(QUERY).await.map(|rows| rows.first().map(Server::read)) {
        Ok(Some(Ok(server))) => server.evaluate((before, now()), deployment, report),
        Ok(Some(Err(error))) => report.add_unchecked("the settings of Postgres", chain(&error)),
        Ok(None) => {}
        Err(error) => report.add_unchecked("the settings of Postgres", chain(&error)),
    }
    if config.sweep_interval().is_none() {
        report.add(
            (FindingKind::PostgresSweeping, Severity::Advice),
            SUBJECT,
            "this store does not delete expired entries (`without_sweeping`)",
            "if no other process deletes them (`PgStore::sweep`), the table grows forever",
            "remove `without_sweeping`, or run `PgStore::sweep` regularly",
        );
    }
    check_namespace(&store, &namespace, report).await;
    store.max_call_duration()
}

/// What the server says about itself.
struct Server {
    synchronous_commit: String,
    fsync: String,
    full_page_writes: String,
    autovacuum: String,
    /// Zero if the server does not end such sessions. `None` before Postgres 17.
    timeouts: [(&'static str, Option<i64>); 2],
    /// `None` if there is no standby.
    all_standbys_are_asynchronous: Option<bool>,
    time: SystemTime,
}

impl Server {
    fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            synchronous_commit: row.try_get(0)?,
            fsync: row.try_get(1)?,
            full_page_writes: row.try_get(2)?,
            autovacuum: row.try_get(3)?,
            timeouts: [
                ("idle_in_transaction_session_timeout", row.try_get(4)?),
                ("transaction_timeout", row.try_get(5)?),
            ],
            all_standbys_are_asynchronous: row.try_get(6)?,
            time: row.try_get(7)?,
        })
    }

    /// `between`: this machine's clock before and after the server read its own.
    fn evaluate(
        &self,
        between: (SystemTime, SystemTime),
        deployment: &Deployment,
        report: &mut Report,
    ) {
        self.check_durability(report);
        if deployment.has_inbox {
            self.check_timeouts(deployment, report);
        }
        if self.autovacuum == "off" {
            report.add(
                (FindingKind::PostgresSweeping, Severity::Advice),
                SUBJECT,
                "autovacuum is off",
                "the space of deleted entries is not reused, and each call becomes slower",
                "set `autovacuum = on`",
            );
        }
        let ahead = self.time.duration_since(between.1).unwrap_or_default();
        let behind = between.0.duration_since(self.time).unwrap_or_default();
        let skew = ahead.max(behind);
        if skew > MAX_CLOCK_SKEW {
            report.add(
                (FindingKind::Clock, Severity::DataLoss),
                SUBJECT,
                format!("server and client clocks are {:.1} s apart", skew.as_secs_f64()),
                "after a failover to a server with the right time, locks and backoffs end too \
                 early or too late, and a fencing token may be lower than an earlier one",
                "synchronize both clocks (NTP)",
            );
        }
    }

    fn check_durability(&self, report: &mut Report) {
        let settings = [
            ("synchronous_commit", &self.synchronous_commit),
            ("fsync", &self.fsync),
            ("full_page_writes", &self.full_page_writes),
        ];
        for (name, _) in settings.into_iter().filter(|(_, value)| *value == "off") {
            report.add(
                (FindingKind::PostgresDurability, Severity::DataLoss),
                SUBJECT,
                format!("{name} = off"),
                "a crash loses completions that were acknowledged, and their records run again when \
                 they are redelivered",
                format!("set `{name} = on`, for the server, the database and the user"),
            );
        }
        if self.all_standbys_are_asynchronous == Some(true) {
            report.add(
                (FindingKind::PostgresStandby, Severity::Advice),
                SUBJECT,
                "all standbys follow asynchronously",
                "a failover loses the last completions, and their records run again when they are \
                 redelivered",
                "set `synchronous_standby_names`",
            );
        }
    }

    fn check_timeouts(&self, deployment: &Deployment, report: &mut Report) {
        let handler = deployment.handler_timeout.unwrap_or_else(|| deployment.layer.max_hold());
        for (name, millis) in self.timeouts {
            let limit = Duration::from_millis(millis.unwrap_or(0).try_into().unwrap_or(0));
            if !limit.is_zero() && limit < handler {
                report.add(
                    (FindingKind::PostgresTimeout, Severity::Failure),
                    SUBJECT,
                    format!(
                        "{name} is {}, but a handler may take {}",
                        display(limit),
                        display(handler)
                    ),
                    "the server ends the transaction of a slow handler, and the attempt fails",
                    format!("raise `{name}` for the user, or shorten the handler's timeout"),
                );
            }
        }
    }
}

fn add_error(error: &ConnectError, report: &mut Report) {
    let is_about_user = || {
        let code = error::find::<tokio_postgres::Error>(error).and_then(|error| error.code());
        // SQLSTATE class 28 is "invalid authorization".
        code.is_some_and(|code| code.code().starts_with("28"))
    };
    let (kind, remedy) = match error {
        ConnectError::Config(_) | ConnectError::Url { .. } | ConnectError::Certificate { .. } => {
            (FindingKind::InvalidSetting, "correct the setting")
        }
        ConnectError::Denied { .. } if is_about_user() => {
            (FindingKind::StoreAuthentication, "correct the user and the password")
        }
        ConnectError::Denied { .. } => (
            FindingKind::StorePermission,
            "grant the permissions listed in the docs of `PgConfig`, again after each migration",
        ),
        ConnectError::Tls { .. } => {
            (FindingKind::StoreTls, "correct the certificates, or the name in the URL")
        }
        ConnectError::Schema { .. } => {
            (FindingKind::PostgresSchema, "migrate the schema (`campanile_postgres::migrate`)")
        }
        _ => (FindingKind::StoreUnreachable, "start the server, or correct its address"),
    };
    report.add(
        (kind, Severity::Failure),
        SUBJECT,
        chain(error),
        "the store does not connect, so the consumer does not start",
        remedy,
    );
}

#[expect(
    clippy::disallowed_methods,
    reason = "compared with the server's clock to report a difference; decides nothing"
)]
fn now() -> SystemTime {
    SystemTime::now()
}
