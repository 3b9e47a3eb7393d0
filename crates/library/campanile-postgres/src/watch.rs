//! Watches, for as long as a store is used, what can make it lose acknowledged writes, or its
//! connections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use campanile_core::telemetry::{Counter, instruments};
use tokio::time::Instant;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::findings::{Finding, evaluate, settings};
use crate::tls::Certificates;

/// Returns the settings that the session returned last, and those of now. A session keeps the
/// settings of its role and database: compared with itself, it has no news of them.
pub(crate) const SETTINGS: &str = concat!(
    "SELECT pg_catalog.current_setting('campanile.seen', true), \
        pg_catalog.set_config('campanile.seen', ",
    settings!(),
    ", false)"
);

/// While calls are made, the settings are read at this interval, together with a call.
const INTERVAL: Duration = Duration::from_secs(3);

/// The interval between two looks at the client's certificate.
const CERTIFICATE_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Reports changes of the settings: by a reload, and on a new connection, which sees those of its
/// role and database. The pools of a store share it.
pub(crate) struct Watch {
    certificates: Certificates,
    unsafe_settings: Counter,
    findings: OnceLock<Vec<Finding>>,
    /// Whether a connection was found in a session that is not its own. Only another pooler helps, and a
    /// restart, which looks again.
    has_foreign_session: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    due: Option<Instant>,
    certificate_due: Option<Instant>,
    /// The settings that were reported last, and whether the server has standbys.
    reported: Option<String>,
    has_standbys: bool,
}

impl Watch {
    pub(crate) fn new(certificates: Certificates) -> Self {
        let unsafe_settings = Counter::new(&instruments::POSTGRES_UNSAFE_SETTINGS, &[]);
        let (findings, has_foreign_session, state) = Default::default();
        Self { certificates, unsafe_settings, findings, has_foreign_session, state }
    }

    /// Takes the settings at the start, with which later ones are compared.
    pub(crate) fn start(&self, settings: String, has_standbys: bool, address: &str) {
        self.findings.get_or_init(|| evaluate(&settings, has_standbys));
        *self.state() = State { reported: Some(settings), has_standbys, ..State::default() };
        self.report_expiry(address);
    }

    /// Returns what was found at the start.
    pub(crate) fn findings(&self) -> &[Finding] {
        self.findings.get().map_or(&[], Vec::as_slice)
    }

    /// Checks whether a connection was found in a session that is not its own.
    pub(crate) fn has_foreign_session(&self) -> bool {
        self.has_foreign_session.load(Ordering::Relaxed)
    }

    /// Reads the settings over a connection in use, if they were not read lately, and checks that the
    /// session is still that of the connection: it then has what the connection has set. A connection
    /// that breaks fails the call as well, so errors are not reported.
    pub(crate) async fn refresh(&self, client: &Client, address: &str) {
        if !claim(&mut self.state().due, INTERVAL) {
            return;
        }
        self.report_expiry(address);
        let rows = client.simple_query(SETTINGS).await.unwrap_or_default();
        if !self.observe(&rows, address) {
            self.has_foreign_session.store(true, Ordering::Relaxed);
        }
    }

    /// Reports each hour that the client's certificate expires soon.
    fn report_expiry(&self, address: &str) {
        if claim(&mut self.state().certificate_due, CERTIFICATE_INTERVAL) {
            self.certificates.report_expiry(address);
        }
    }

    /// Compares the answer to [`SETTINGS`], which is the last row. Returns whether the session had
    /// returned its settings before.
    pub(crate) fn observe(&self, rows: &[SimpleQueryMessage], address: &str) -> bool {
        let row = rows.iter().rev().find_map(|message| match message {
            SimpleQueryMessage::Row(row) if row.len() == 2 => Some((row.get(0), row.get(1)?)),
            _ => None,
        });
        let Some((last, new)) = row else { return true };
        if last != Some(new) {
            self.report(new, address);
        }
        last.is_some_and(|last| !last.is_empty())
    }

    fn report(&self, new: &str, address: &str) {
        let mut state = self.state();
        let Some(old) = state.reported.replace(new.to_owned()).filter(|old| old != new) else {
            return;
        };
        let known = evaluate(&old, state.has_standbys);
        // Standbys that were named are still there when they are not named any more.
        state.has_standbys |= !old.ends_with("synchronous_standby_names=");
        let found = evaluate(new, state.has_standbys).into_iter();
        let added: Vec<_> =
            found.filter(|it| !known.contains(it)).map(|it| it.to_string()).collect();
        tracing::warn!(
            address,
            old = &*old,
            new,
            risk = (!added.is_empty()).then(|| added.join("; ")),
            "a setting of Postgres was changed that decides which acknowledged writes a failure can \
             lose"
        );
        self.unsafe_settings.increment(added.len() as u64);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether the time has come, for one caller in each interval.
fn claim(due: &mut Option<Instant>, interval: Duration) -> bool {
    let now = Instant::now();
    let is_due = due.is_none_or(|due| now >= due);
    if is_due {
        *due = Some(now + interval);
    }
    is_due
}
