//! The server of a Postgres store.

use std::time::{Duration, SystemTime};

use campanile_core::{Namespace, error};
use campanile_postgres::tokio_postgres::{self, Row};
use campanile_postgres::{ConnectError, Finding, FindingKind as PgFindingKind, PgConfig, PgStore};

use super::finding::{FindingKind, Severity};
use super::store::check_namespace;
use super::{Deployment, Report, display};
use crate::error::chain;

const SUBJECT: &str = "Postgres";

/// The settings that the store does not check, as they apply to its user and database, and the time.
const QUERY: &str = "SELECT \
    pg_catalog.current_setting('autovacuum'), \
    (SELECT setting::bigint FROM pg_catalog.pg_settings \
        WHERE name = 'idle_in_transaction_session_timeout'), \
    (SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'transaction_timeout'), \
    pg_catalog.clock_timestamp()";

/// The largest accepted difference between the server's clock and this machine's.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(1);

pub(super) async fn examine(
    config: &PgConfig,
    namespace: Namespace,
    deployment: &Deployment,
    report: &mut Report,
) {
    let store = match PgStore::connect(config.clone()).await {
        Ok(store) => store,
        Err(error) => return add_error(&error, report),
    };
    store.findings().iter().for_each(|finding| add(finding, report));
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
}

/// What the server says about itself.
struct Server {
    autovacuum: String,
    /// Zero if the server does not end such sessions. `None` before Postgres 17.
    timeouts: [(&'static str, Option<i64>); 2],
    time: SystemTime,
}

impl Server {
    fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            autovacuum: row.try_get(0)?,
            timeouts: [
                ("idle_in_transaction_session_timeout", row.try_get(1)?),
                ("transaction_timeout", row.try_get(2)?),
            ],
            time: row.try_get(3)?,
        })
    }

    /// `between`: this machine's clock before and after the server read its own.
    fn evaluate(
        &self,
        between: (SystemTime, SystemTime),
        deployment: &Deployment,
        report: &mut Report,
    ) {
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

fn add(finding: &Finding, report: &mut Report) {
    let (kind, severity) = match finding.kind {
        PgFindingKind::Durability => (FindingKind::PostgresDurability, Severity::DataLoss),
        PgFindingKind::SkippedStandby => (FindingKind::PostgresStandby, Severity::DataLoss),
        PgFindingKind::AsynchronousStandbys => (FindingKind::PostgresStandby, Severity::Advice),
        _ => return report.add_unchecked(SUBJECT, finding.to_string()),
    };
    let Finding { observed, risk, remedy, .. } = finding;
    report.add((kind, severity), SUBJECT, observed.clone(), *risk, *remedy);
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
