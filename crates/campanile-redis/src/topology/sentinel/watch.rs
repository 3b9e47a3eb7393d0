//! Whether the primary has changed, although the one that was still answers.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::sentinels::Sentinels;
use crate::topology::Address;

/// Between two looks while calls are made. The sentinels themselves look at a replica that they
/// promote once a second: to ask more often would gain little.
const PERIOD: Duration = Duration::from_secs(1);

/// Between two looks at least, however often there is doubt.
const PAUSE: Duration = Duration::from_millis(100);

/// Asks the sentinels in the background, while calls are made, who the primary is.
///
/// In a failover that is commanded, or in which the network was divided, the old primary takes
/// writes until the sentinels make it a replica, some ten seconds later, and loses them then.
pub(super) struct Watch {
    pub(super) sentinels: Sentinels,
    is_looking: AtomicBool,
    doubt: Notify,
    told: Mutex<Option<Told>>,
}

/// What most of the sentinels have told last.
struct Told {
    asked: Instant,
    primary: Address,
}

/// The sentinels name another server than the one that is followed.
pub(super) struct Left {
    primary: Address,
}

impl Watch {
    pub(super) fn new(sentinels: Sentinels) -> Arc<Self> {
        let (is_looking, doubt, told) = Default::default();
        Arc::new(Self { sentinels, is_looking, doubt, told })
    }

    /// Another primary, if they have named one since this one was `asked` for.
    pub(super) fn left(&self, followed: &Address, asked: Instant) -> Option<Left> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let other = told.as_ref().filter(|told| told.asked > asked && told.primary != *followed)?;
        Some(Left { primary: other.primary.clone() })
    }

    /// A call is made to this server: looks, unless that was done lately.
    pub(super) fn go_on(self: &Arc<Self>, followed: &Address) {
        if self.is_looking.swap(true, Ordering::Relaxed) {
            return;
        }
        let looking = Looking(Arc::clone(self));
        // Where there is no runtime, there is no call either.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(looking.run(followed.clone()));
        }
    }

    /// Looks at once, if calls are made.
    pub(super) fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// A server is believed to be the primary when most of the sentinels name it, for a few that
    /// were cut off tell what was, and when it says so itself: the one that is followed does.
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

/// However it ends, also with its runtime, it can begin anew.
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
        write!(f, "the sentinels have another primary, at {}", self.primary)
    }
}
