//! What a program can tell a consumer that serves, and learn from it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::{Control, Shutdown};
use crate::health::Health;
use crate::status::Status;

/// Pauses, resumes and ends a consumer that serves, and tells how it does. Made by [`Serve::handle`](crate::Serve::handle);
/// its clones are of the same consumer.
///
/// While it is paused, the consumer dispatches nothing. What is at work ends and is committed, but
/// for what would become a dead letter: that keeps its place and gets its last attempt back. The
/// consumer stays in its group, and shutdowns and rebalances go as ever.
///
/// ```
/// # use campanile_core::{BoxError, Record};
/// # use campanile_kafka::{Consumer, ConsumerConfig, DeadLetter};
/// # fn serving() -> Result<(), BoxError> {
/// # let service = tower::service_fn(|_: Record| async { Ok::<_, BoxError>(()) });
/// let serve = Consumer::new(ConsumerConfig::new("localhost:9092", "billing"))?
///     .subscribe(["payments"])
///     .with_given_up(DeadLetter::topic("payments.dead"))
///     .serve(service);
/// let handle = serve.handle();
/// // for a route such as `/resume`, which calls its `resume`
/// let admin = handle.clone();
/// tokio::spawn(async move {
///     // ends with serving
///     while let Some(why) = handle.wait_paused().await {
///         println!("page somebody, once: {why}");
///         handle.wait_resumed().await;
///     }
/// });
/// # drop(admin);
/// # Ok(())
/// # }
/// ```
pub struct Handle {
    control: Arc<Control>,
    /// The pause that `wait_paused` told last, by how often it was resumed before; or `NONE`.
    told: AtomicU64,
}

/// No pause.
const NONE: u64 = u64::MAX;

/// Why a consumer is paused.
///
/// There may be further reasons and figures some day, so a pattern has to leave room for both:
///
/// ```
/// use campanile_kafka::Paused;
///
/// fn page(why: &Paused) -> Option<String> {
///     match why {
///         // Whoever did that knows.
///         Paused::ByHandle => None,
///         Paused::Flood { most, .. } => Some(format!("more than {most} dead letters at a time")),
///         other => Some(other.to_string()),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Paused {
    /// By [`Handle::pause`].
    ByHandle,
    /// By the [`FloodGuard`](crate::FloodGuard): one more would have been more than `most` dead
    /// letters among the last `of_last` finished records.
    #[non_exhaustive]
    Flood {
        /// How many there may be.
        most: usize,
        /// Of so many.
        of_last: usize,
    },
}

impl fmt::Display for Paused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByHandle => f.write_str("paused by its handle"),
            Self::Flood { most, of_last } => write!(
                f,
                "paused by its flood guard: one more would be more than {most} dead letters among \
                 the last {of_last} finished records"
            ),
        }
    }
}

impl Handle {
    pub(crate) fn new(control: Arc<Control>) -> Self {
        Self { control, told: AtomicU64::new(NONE) }
    }

    /// Dispatches nothing until it is resumed. Before it serves, too.
    pub fn pause(&self) {
        self.control.pause(Paused::ByHandle);
    }

    /// Goes on, whatever the pause's reason. The flood guard counts from the beginning, and the
    /// records that it has held are tried again at once, with the attempt that failed as if it had not
    /// been made. One whose attempts were used up before (by crashes, say) is not tried but buried.
    pub fn resume(&self) {
        self.control.resume();
    }

    /// Ends it gracefully, as the signal of
    /// [`with_graceful_shutdown`](crate::Serve::with_graceful_shutdown) does. Once it ends, and after
    /// that, this changes nothing. Before it serves, too: then it ends as soon as it begins.
    pub fn shutdown(&self) {
        self.control.shutdown(Shutdown::Graceful);
    }

    /// Ends it without waiting for the records at work, also in the middle of a graceful shutdown:
    /// they are dropped as when the drain's time is up, which counts no attempt, and their locks are
    /// released; what is finished is committed, and the consumer leaves its group. With a store and
    /// brokers that answer that takes no time; where they do not, some seconds.
    ///
    /// The [`Summary`](crate::Summary) says in `left` how many records were not finished.
    /// [`with_shutdown_signals`](crate::Serve::with_shutdown_signals) calls it at a second signal.
    pub fn shutdown_now(&self) {
        self.control.shutdown(Shutdown::Now);
    }

    /// Whether it works.
    pub fn health(&self) -> Health {
        Health::of(self.control.vitals())
    }

    /// How far it is, and what it has of each partition.
    pub fn status(&self) -> Status {
        self.control.vitals().status()
    }

    /// Why it is paused; `None` if it is not.
    pub fn paused(&self) -> Option<Paused> {
        self.control.state().borrow().paused.clone()
    }

    /// Waits until it is paused, and tells why; at once if it is. `None` when it has ended.
    ///
    /// # Cancellation
    /// It may be dropped at any time.
    pub async fn wait_paused(&self) -> Option<Paused> {
        let mut state = self.control.state().subscribe();
        let paused = state.wait_for(|state| state.paused.is_some() || state.ended).await;
        // The sender is in `self`.
        let paused = paused.ok()?;
        let why = paused.paused.clone()?;
        self.told.store(paused.resumed, Ordering::Relaxed);
        Some(why)
    }

    /// Waits until the pause is over that [`wait_paused`](Self::wait_paused) of this handle told last,
    /// and is not fooled by another that follows at once. Without one, until the present pause is over.
    /// At once if it is not paused, or has ended.
    ///
    /// # Cancellation
    /// It may be dropped at any time.
    pub async fn wait_resumed(&self) {
        let mut state = self.control.state().subscribe();
        let pause = match self.told.load(Ordering::Relaxed) {
            NONE => state.borrow().resumed,
            told => told,
        };
        // At the end it is not paused any more. No error: the sender is in `self`.
        let _ = state.wait_for(|state| state.paused.is_none() || state.resumed != pause).await;
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::new(self.control.clone())
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("paused", &self.paused()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    use crate::driver::{Switch, Vitals};

    fn switch() -> Switch {
        Switch::new(Vitals::new(Duration::MAX))
    }

    #[tokio::test]
    async fn who_waits_for_the_resume_from_elsewhere_learns_of_each_pause_once() {
        let switch = switch();
        let (pager, admin) =
            (Handle::new(switch.control().clone()), Handle::new(switch.control().clone()));
        assert_eq!(pager.wait_paused().now_or_never(), None);
        for _ in 0..3 {
            admin.pause();
            assert_eq!(pager.wait_paused().await, Some(Paused::ByHandle));
            assert_eq!(pager.wait_resumed().now_or_never(), None);
            admin.resume();
            pager.wait_resumed().await;
            assert_eq!(pager.wait_paused().now_or_never(), None);
        }
    }

    #[tokio::test]
    async fn a_pause_that_follows_while_the_one_before_is_told_is_told_as_well() {
        let switch = switch();
        let (pager, admin) =
            (Handle::new(switch.control().clone()), Handle::new(switch.control().clone()));
        admin.pause();
        pager.wait_paused().await;
        // It is resumed and paused again while the page is on its way.
        admin.resume();
        admin.pause();
        pager.wait_resumed().await;
        assert_eq!(pager.wait_paused().await, Some(Paused::ByHandle));
        assert_eq!(pager.wait_resumed().now_or_never(), None);
        // A handle that has told nothing waits for the end of this one.
        assert_eq!(pager.clone().wait_resumed().now_or_never(), None);
        admin.resume();
        pager.clone().wait_resumed().await;
    }

    #[tokio::test]
    async fn when_serving_has_ended_nobody_waits() {
        let switch = switch();
        let (pager, admin) =
            (Handle::new(switch.control().clone()), Handle::new(switch.control().clone()));
        admin.pause();
        pager.wait_paused().await;
        let waits = pager.wait_resumed();
        drop(switch);
        waits.await;
        assert_eq!(pager.wait_paused().await, None);
        admin.pause();
        assert_eq!(admin.paused(), None);
        pager.wait_resumed().await;
    }

    #[test]
    fn each_demand_to_end_is_taken_once_and_none_takes_back_the_one_before() {
        let mut switch = switch();
        let handle = Handle::new(switch.control().clone());
        assert_eq!(switch.take_shutdown(), None);
        handle.shutdown();
        handle.clone().shutdown();
        assert_eq!(switch.take_shutdown(), Some(Shutdown::Graceful));
        handle.shutdown_now();
        handle.shutdown();
        assert_eq!(switch.take_shutdown(), Some(Shutdown::Now));
        assert_eq!(switch.take_shutdown(), None);
    }

    #[tokio::test]
    async fn a_flood_is_told_also_where_it_was_paused_by_hand_and_no_hand_hides_it() {
        let switch = switch();
        let admin = Handle::new(switch.control().clone());
        admin.pause();
        let flood = Paused::Flood { most: 50, of_last: 100 };
        switch.pause_for_flood(flood.clone());
        assert_eq!(admin.paused(), Some(flood.clone()));
        admin.pause();
        assert_eq!(admin.paused(), Some(flood));
    }
}
