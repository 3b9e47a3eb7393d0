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
const PERIOD: Duration = Duration::from_secs(1);

/// The minimum pause between two queries, however often the primary is in doubt.
const PAUSE: Duration = Duration::from_millis(100);

/// Asks the sentinels for the primary in the background, while calls are made.
///
/// After a failover by command, or during a network partition, the old primary accepts writes until
/// the sentinels make it a replica some ten seconds later. Those writes are lost.
pub(super) struct Watch {
    pub(super) sentinels: Sentinels,
    is_looking: AtomicBool,
    doubt: Notify,
    told: Mutex<Option<Told>>,
}

/// The primary that most of the sentinels named last.
struct Told {
    asked: Instant,
    primary: Address,
}

/// The sentinels name a server other than the one in use.
pub(super) struct Left {
    primary: Address,
}

impl Watch {
    pub(super) fn new(sentinels: Sentinels) -> Arc<Self> {
        let (is_looking, doubt, told) = Default::default();
        Arc::new(Self { sentinels, is_looking, doubt, told })
    }

    /// The primary that the sentinels have named in a query after `asked`, if it is not `followed`.
    pub(super) fn left(&self, followed: &Address, asked: Instant) -> Option<Left> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let other = told.as_ref().filter(|told| told.asked > asked && told.primary != *followed)?;
        Some(Left { primary: other.primary.clone() })
    }

    /// Starts a query in the background because a call is made to this server, unless one was
    /// started recently.
    pub(super) fn go_on(self: &Arc<Self>, followed: &Address) {
        if self.is_looking.swap(true, Ordering::Relaxed) {
            return;
        }
        let looking = Looking(Arc::clone(self));
        // Without a runtime there is no call either.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(looking.run(followed.clone()));
        }
    }

    /// Requests a query at once, if calls are being made.
    pub(super) fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// Asks the sentinels once. A server counts as the primary if most of the sentinels name it,
    /// because a few that were cut off name an outdated one, and if it reports itself as a primary.
    /// The server in use has already done the latter.
    async fn look(&self, followed: &Address) {
        let asked = Instant::now();
        let Some(primary) = self.sentinels.most_named().await else {
            return;
        };
        if primary == *followed || self.sentinels.is_primary(&primary).await {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            *told = Some(Told { asked, primary });
        }
    }
}

/// Allows the next query on drop, also when the task ends with its runtime.
struct Looking(Arc<Watch>);

impl Looking {
    async fn run(self, followed: Address) {
        let Self(watch) = &self;
        loop {
            watch.look(&followed).await;
            sleep(PAUSE).await;
            if timeout(PERIOD - PAUSE, watch.doubt.notified()).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.is_looking.store(false, Ordering::Relaxed);
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the sentinels now name another primary, {}", self.primary)
    }
}
