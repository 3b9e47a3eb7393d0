//! Detects that the primary has changed while the previous one still answers.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::sentinels::Sentinels;
use crate::topology::Address;

/// The interval between two queries while calls are made. The sentinels themselves query a replica
/// that they promote once a second, so a shorter interval would gain little.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The minimum pause between two queries, however often the primary is in doubt.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Asks the sentinels for the primary in the background, while calls are made.
///
/// After a failover by command, or during a network partition, the old primary accepts writes until
/// the sentinels make it a replica some ten seconds later. Those writes are lost.
pub(super) struct FailoverMonitor {
    pub(super) sentinels: Sentinels,
    is_polling: AtomicBool,
    poll_requested: Notify,
    last_poll: Mutex<Option<PollResult>>,
}

/// The primary that most of the sentinels named last.
struct PollResult {
    polled_at: Instant,
    primary: Address,
}

/// The sentinels name a server other than the one in use.
pub(super) struct PrimaryChanged {
    primary: Address,
}

impl FailoverMonitor {
    pub(super) fn new(sentinels: Sentinels) -> Arc<Self> {
        let (is_polling, poll_requested, last_poll) = Default::default();
        Arc::new(Self { sentinels, is_polling, poll_requested, last_poll })
    }

    /// The primary that the sentinels have named in a query after `since`, if it is not `current`.
    pub(super) fn new_primary_since(
        &self,
        current: &Address,
        since: Instant,
    ) -> Option<PrimaryChanged> {
        let last_poll = self.last_poll.lock().unwrap_or_else(PoisonError::into_inner);
        let other =
            last_poll.as_ref().filter(|poll| poll.polled_at > since && poll.primary != *current)?;
        Some(PrimaryChanged { primary: other.primary.clone() })
    }

    /// Starts a query in the background because a call is made to this server, unless one was
    /// started recently.
    pub(super) fn ensure_polling(self: &Arc<Self>, current: &Address) {
        if self.is_polling.swap(true, Ordering::Relaxed) {
            return;
        }
        let task = PollTask(Arc::clone(self));
        // Without a runtime there is no call either.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(task.run(current.clone()));
        }
    }

    /// Requests a query at once, if calls are being made.
    pub(super) fn poll_now(&self) {
        self.poll_requested.notify_one();
    }

    /// Asks the sentinels once. A server counts as the primary if most of the sentinels name it,
    /// because a few that were cut off name an outdated one, and if it reports itself as a primary.
    /// The server in use has already done the latter.
    async fn poll(&self, current: &Address) {
        let polled_at = Instant::now();
        let Some(primary) = self.sentinels.majority_primary().await else {
            return;
        };
        if primary == *current || self.sentinels.is_primary(&primary).await {
            let mut last_poll = self.last_poll.lock().unwrap_or_else(PoisonError::into_inner);
            *last_poll = Some(PollResult { polled_at, primary });
        }
    }
}

/// Allows the next query on drop, also when the task ends with its runtime.
struct PollTask(Arc<FailoverMonitor>);

impl PollTask {
    async fn run(self, current: Address) {
        let Self(monitor) = &self;
        loop {
            monitor.poll(&current).await;
            sleep(MIN_POLL_INTERVAL).await;
            if timeout(POLL_INTERVAL - MIN_POLL_INTERVAL, monitor.poll_requested.notified())
                .await
                .is_err()
            {
                return;
            }
        }
    }
}

impl Drop for PollTask {
    fn drop(&mut self) {
        self.0.is_polling.store(false, Ordering::Relaxed);
    }
}

impl fmt::Display for PrimaryChanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the sentinels now name another primary, {}", self.primary)
    }
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;
    use crate::connector::{Connector, Endpoint, Secrets};

    #[test]
    fn primary_is_new_only_if_another_was_named_since() {
        let (before, second) = (Instant::now(), Duration::from_secs(1));
        let polled_at = before + second;
        let info = "redis://a:1".into_connection_info().unwrap();
        let server = Endpoint::new(info, Secrets::default());
        let address = |host: &str| Address { host: host.into(), port: 1 };
        let monitor = FailoverMonitor::new(Sentinels {
            name: "tower".into(),
            endpoints: Box::default(),
            connector: Connector::new(server, second),
            command_timeout: second,
        });
        let new_primary_since = |current, since| {
            let changed = monitor.new_primary_since(&address(current), since);
            changed.map(|changed| changed.to_string())
        };
        assert_eq!(new_primary_since("a", before), None);
        *monitor.last_poll.lock().unwrap() = Some(PollResult { polled_at, primary: address("b") });
        let changed = "the sentinels now name another primary, b:1";
        assert_eq!(new_primary_since("a", before).as_deref(), Some(changed));
        assert_eq!(new_primary_since("a", polled_at), None);
        assert_eq!(new_primary_since("b", before), None);
    }
}
