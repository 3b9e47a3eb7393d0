//! Control and inspection of a running consumer.

use std::fmt;
use std::sync::Arc;

use crate::control::{Control, PauseTarget, Shutdown};
use crate::health::Health;
use crate::paused::Paused;
use crate::rebalance::Rebalances;
use crate::seek::{SeekError, SeekTo};
use crate::status::Status;

/// A handle to a running consumer: pauses, resumes and shuts it down, moves its positions, and reports
/// its state. Returned by [`Serve::handle`](crate::Serve::handle); all clones refer to the same consumer.
///
/// While paused, the consumer dispatches no records. Records in flight finish and are committed, except
/// for records that would become dead letters: these wait, and their last attempt is not
/// counted. The consumer stays in its group; shutdowns and rebalances work as usual.
///
/// Single topics and partitions can be paused, too. A record is dispatched only if neither the consumer,
/// nor its topic, nor its partition is paused; each of these pauses ends only by its own resume. The flood
/// limit pauses the consumer only. Pauses exist in this process only, until it ends: they survive
/// rebalances, and a partition that another consumer of the group gets is not paused there.
///
/// ```
/// use campanile_driver::{Handle, Paused};
///
/// /// Pages somebody at each pause, and resumes once they have fixed its cause.
/// async fn page(handle: Handle, until_fixed: impl AsyncFn(Paused)) {
///     // ends when serving ends
///     while let Some(why) = handle.wait_paused().await {
///         until_fixed(why).await;
///         handle.resume();
///     }
/// }
/// ```
#[derive(Clone)]
pub struct Handle {
    control: Arc<Control>,
}

impl Handle {
    pub(crate) fn new(control: Arc<Control>) -> Self {
        Self { control }
    }

    /// Pauses the consumer: no records are dispatched until it is resumed. Can be called before serving
    /// starts.
    pub fn pause(&self) {
        self.control.pause(Paused::ByHandle);
    }

    /// Resumes the consumer, regardless of the reason for the pause. Topics and partitions that were
    /// paused by themselves stay paused. The flood limit starts counting from
    /// zero. The records that it has held back are retried at once, and their failed attempt is not
    /// counted. A record that had used up its attempts before, for example by crashes, is not retried but
    /// becomes a dead letter.
    pub fn resume(&self) {
        self.control.resume();
    }

    /// Pauses a topic: no records of its partitions are dispatched until
    /// [`resume_topic`](Self::resume_topic). Records in flight finish, or are given up, and are
    /// committed. Other topics are not affected, not even the topic's retry topics.
    ///
    /// This includes partitions that are assigned later, so it can be called before serving starts. A
    /// topic that is never consumed is ignored.
    pub fn pause_topic(&self, topic: &str) {
        self.control.pause_target(PauseTarget { topic: topic.into(), partition: None });
    }

    /// Resumes a topic. Partitions that were paused by [`pause_partition`](Self::pause_partition) stay
    /// paused.
    pub fn resume_topic(&self, topic: &str) {
        self.control.resume_target(&PauseTarget { topic: topic.into(), partition: None });
    }

    /// Pauses a partition, as [`pause_topic`](Self::pause_topic) pauses all partitions of a topic. If the
    /// partition is revoked and assigned to this consumer again, it is still paused.
    pub fn pause_partition(&self, topic: &str, partition: i32) {
        let partition = Some(partition);
        self.control.pause_target(PauseTarget { topic: topic.into(), partition });
    }

    /// Resumes a partition. If its topic was paused by [`pause_topic`](Self::pause_topic), it stays
    /// paused.
    pub fn resume_partition(&self, topic: &str, partition: i32) {
        let partition = Some(partition);
        self.control.resume_target(&PauseTarget { topic: topic.into(), partition });
    }

    /// Moves a partition to another position, from which its records are processed next. Returns the
    /// offset of the position once the partition is there.
    ///
    /// No record of the partition is started in the meantime. Records in flight may finish within
    /// the [drain timeout](crate::DriverConfig::drain_timeout), and are then dropped, which counts no
    /// attempt, and their locks are released. Finished records are committed. Other partitions are
    /// not affected. Pauses of the partition stay, and a partition that was
    /// [stopped](crate::epilogue::GiveUpAction::StopPartition) is processed again.
    ///
    /// * **Backward**: the records are delivered again. The idempotency layer answers those whose entries
    ///   are still kept as duplicates, so their handlers do not run again. The group's committed offset
    ///   goes back once a record from the position on is finished; with an `auto.offset.reset` other than
    ///   `earliest`, once one is received.
    /// * **Forward**: the records before the position are skipped, and the position is committed before
    ///   the partition is read from there, unless the brokers do not answer the commit. A restart then
    ///   does not process them either. This is logged at WARN, with the fields `topic`, `partition`,
    ///   `from` and `to`.
    ///
    /// Any assigned partition can be sought, including those of retry topics. Another process of the group
    /// needs a seek of its own for its partitions. If the partition is revoked later, its next owner
    /// continues from the committed offset, as usual.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    ///
    /// use campanile_driver::{Handle, SeekError, SeekTo};
    ///
    /// /// Processes the last hour of a partition again.
    /// async fn replay(handle: Handle, topic: &str, partition: i32) -> Result<i64, SeekError> {
    ///     let time = SystemTime::now() - Duration::from_secs(3600);
    ///     handle.seek(topic, partition, SeekTo::Time(time)).await
    /// }
    /// ```
    ///
    /// # Errors
    /// Fails without an effect if the partition is not assigned, or has another seek in progress; if
    /// the offset is not in the partition; if the consumer commits in
    /// transactions, where a seek would repeat or lose outputs;
    /// or if the brokers do not answer within 5 s. If the partition is revoked or the consumer shuts down
    /// during the seek, the position may have been committed already.
    ///
    /// # Cancellation
    /// A seek that was started is completed even if the future is dropped.
    pub async fn seek(&self, topic: &str, partition: i32, to: SeekTo) -> Result<i64, SeekError> {
        let result = self.control.seek(topic, partition, to).await;
        result.unwrap_or(Err(SeekError::ShuttingDown))
    }

    /// Starts a graceful shutdown, as the signal of
    /// [`with_graceful_shutdown`](crate::Serve::with_graceful_shutdown) does. Does nothing if the
    /// consumer is already shutting down or has ended. If called before serving starts, serving ends as
    /// soon as it starts.
    pub fn shutdown(&self) {
        self.control.shutdown(Shutdown::Graceful);
    }

    /// Shuts down without waiting for the records in flight, even during a graceful shutdown. They are
    /// dropped as after the drain timeout, which counts no attempt, and their locks are released;
    /// finished records are committed, and the consumer leaves its group. This is immediate if the store
    /// and the brokers respond, and takes some seconds if they do not.
    ///
    /// [`Summary::unfinished`](crate::Summary::unfinished) is the number of records that were not finished.
    /// [`with_shutdown_signals`](crate::Serve::with_shutdown_signals) does the same at a second signal.
    pub fn shutdown_now(&self) {
        self.control.shutdown(Shutdown::Now);
    }

    /// Checks the consumer's health.
    pub fn health(&self) -> Health {
        Health::of(self.control.status())
    }

    /// Reads the consumer's stage and the status of each assigned partition.
    pub fn status(&self) -> Status {
        self.control.status().snapshot()
    }

    /// Follows the rebalances from now on: which partitions are assigned to the consumer, and which it
    /// has given up. The first event is [`Rebalance::Assigned`](crate::Rebalance::Assigned) with the
    /// partitions that are assigned already, if there are any. Call this before serving starts to see
    /// them all.
    ///
    /// Use it to keep data per partition, such as a cache, in a task of your own:
    ///
    /// ```
    /// use campanile_driver::{Handle, Rebalance, TopicPartition};
    ///
    /// async fn keep_caches(
    ///     handle: Handle,
    ///     load: impl AsyncFn(TopicPartition),
    ///     unload: impl Fn(TopicPartition),
    /// ) {
    ///     let mut rebalances = handle.rebalances();
    ///     // ends when serving ends
    ///     while let Some(rebalance) = rebalances.next().await {
    ///         match rebalance {
    ///             Rebalance::Assigned(partitions) => {
    ///                 for partition in partitions {
    ///                     load(partition).await;
    ///                 }
    ///             }
    ///             Rebalance::Revoked(partitions) | Rebalance::Lost(partitions) => {
    ///                 partitions.into_iter().for_each(&unload);
    ///             }
    ///             _ => {}
    ///         }
    ///     }
    /// }
    /// ```
    pub fn rebalances(&self) -> Rebalances {
        self.control.rebalances().subscribe()
    }

    /// Returns the reason why the consumer is paused, or `None` if it is not.
    pub fn paused(&self) -> Option<Paused> {
        self.control.state().borrow().paused.clone()
    }

    /// Waits until the consumer is paused, and returns the reason; returns immediately if it is paused
    /// already. Returns `None` when the consumer has ended.
    ///
    /// # Cancellation
    /// The future may be dropped at any time.
    pub async fn wait_paused(&self) -> Option<Paused> {
        let mut state = self.control.state().subscribe();
        let paused = state.wait_for(|state| state.paused.is_some() || state.ended).await;
        // The sender is in `self`.
        paused.ok()?.paused.clone()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("paused", &self.paused()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::control::{DriverControl, DriverStatus};

    fn driver_control() -> DriverControl {
        DriverControl::new(DriverStatus::new(Duration::MAX))
    }

    #[tokio::test]
    async fn waiter_sees_each_pause() {
        let driver_control = driver_control();
        let pager = Handle::new(driver_control.shared().clone());
        let admin = pager.clone();
        assert_eq!(pager.wait_paused().now_or_never(), None);
        for _ in 0..3 {
            admin.pause();
            assert_eq!(pager.wait_paused().await, Some(Paused::ByHandle));
            admin.resume();
            assert_eq!(pager.wait_paused().now_or_never(), None);
        }
    }

    #[tokio::test]
    async fn end_of_serving_wakes_waiter_and_ends_pause() {
        let [running, paused] = [driver_control(), driver_control()];
        let handles = [&running, &paused].map(|it| Handle::new(it.shared().clone()));
        let mut waits = pin!(handles[0].wait_paused());
        assert_eq!((&mut waits).now_or_never(), None);
        handles[1].pause();
        drop((running, paused));
        assert_eq!(waits.await, None);
        assert_eq!(handles[1].wait_paused().await, None);
        handles[1].pause();
        assert_eq!(handles[1].paused(), None);
    }

    #[test]
    fn shutdown_requests_are_taken_once_and_never_downgraded() {
        let mut driver_control = driver_control();
        let handle = Handle::new(driver_control.shared().clone());
        assert_eq!(driver_control.take_shutdown(), None);
        handle.shutdown();
        handle.clone().shutdown();
        assert_eq!(driver_control.take_shutdown(), Some(Shutdown::Graceful));
        handle.shutdown_now();
        handle.shutdown();
        assert_eq!(driver_control.take_shutdown(), Some(Shutdown::Now));
        assert_eq!(driver_control.take_shutdown(), None);
    }

    #[tokio::test]
    async fn flood_pause_replaces_a_manual_pause_and_is_not_replaced() {
        let driver_control = driver_control();
        let admin = Handle::new(driver_control.shared().clone());
        admin.pause();
        let flood = Paused::Flood { limit: 50, window: 100 };
        driver_control.pause_for_flood(flood.clone());
        assert_eq!(admin.paused(), Some(flood.clone()));
        admin.pause();
        assert_eq!(admin.paused(), Some(flood));
    }
}
