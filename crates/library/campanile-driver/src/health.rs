//! Liveness and readiness of a consumer.

use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::control::DriverStatus;
use crate::status::ConsumerStage;

/// How long the program's runtime may take to run a task of the driver. This takes microseconds,
/// unless handlers block all threads of the runtime. 30 s is more than a busy machine ever takes,
/// and less than anyone should wait for a restart.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(30);

/// How long an assigned partition may take to start. An event is logged after half of that time.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The liveness and readiness of a consumer. Returned by [`Handle::health`](crate::Handle::health);
/// [`HealthService`](crate::HealthService) serves it over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Whether the driver itself makes progress. If not, only a restart helps.
    ///
    /// The driver's thread must poll Kafka, the program's runtime, which runs the handlers, must answer
    /// the driver, the certificates must not be [stale](Unhealthy::Certificate), and librdkafka must
    /// [fetch](Unhealthy::NotFetched) each partition. Nothing else counts: the consumer stays live while the store or the brokers are unavailable, during a pause,
    /// and while a handler takes long. It is live before it serves, and not after serving has ended.
    pub live: Result<(), Unhealthy>,
    /// Whether the consumer is live, its group has assigned partitions to it (possibly none, so a
    /// spare member is ready), each assigned partition was started within a minute, the store answers,
    /// and the consumer is not shutting down.
    ///
    /// A paused consumer stays ready, so that a request to resume it still reaches it through a
    /// Kubernetes Service: see [`Handle::paused`](crate::Handle::paused). So does a consumer with
    /// [stopped partitions](crate::epilogue::GiveUpAction::StopPartition), and one whose records wait for an
    /// [unavailable dependency](crate::Status::unavailable), which no restart brings back. A store that was
    /// unavailable is disregarded after some seconds in which no record has used it, because the
    /// consumer is paused or has no records that need the store.
    pub ready: Result<(), Unhealthy>,
}

/// Why a consumer is not live, or not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unhealthy {
    /// Not live: the driver's thread has not polled Kafka for longer than `max.poll.interval.ms`,
    /// after which the consumer is no longer in its group.
    #[non_exhaustive]
    Driver {
        /// The time since the last poll.
        silent: Duration,
    },
    /// Not live: the program's runtime has not run a task of the driver for more than 30 s.
    /// Something blocks all of its threads.
    #[non_exhaustive]
    Runtime {
        /// The time since the task was spawned.
        silent: Duration,
    },
    /// Not live: for a minute, no broker has been reachable because TLS fails or the client certificate
    /// has expired, and the files with the certificates were replaced after the client had read them.
    Certificate,
    /// Not live: librdkafka does not fetch a partition that has further records, or has not started one for a
    /// minute, and a seek has not helped. It cannot follow a topic that was recreated after its leader had
    /// changed.
    NotFetched,
    /// Not live: serving has ended.
    Ended,
    /// Not ready: the brokers, the topics, or a place in the group have not been found yet.
    Starting,
    /// Not ready: the consumer is shutting down.
    ShuttingDown,
    /// Not ready: the group has not assigned anything yet, or the consumer was removed from its
    /// group.
    Unassigned,
    /// Not ready: an assigned partition was not started within a minute.
    NotStarted,
    /// Not ready: the store does not answer, so no records are dispatched.
    StoreUnavailable,
}

impl fmt::Display for Unhealthy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver { silent } => {
                write!(f, "the driver's thread has not polled Kafka for {silent:.0?}")
            }
            Self::Runtime { silent } => write!(
                f,
                "the runtime has run no task for {silent:.0?}: something blocks all of its threads"
            ),
            Self::NotFetched => {
                f.write_str("librdkafka does not fetch a partition any more; only a restart helps")
            }
            Self::Certificate => f.write_str("only a restart can read the new certificates"),
            Self::Ended => f.write_str("serving has ended"),
            Self::Starting => f.write_str("starting: brokers or topics have not been found yet"),
            Self::ShuttingDown => f.write_str("shutting down"),
            Self::Unassigned => f.write_str("the group has not assigned any partitions"),
            Self::NotStarted => {
                f.write_str("an assigned partition was not started within a minute")
            }
            Self::StoreUnavailable => {
                f.write_str("the store does not answer; no records are dispatched")
            }
        }
    }
}

impl std::error::Error for Unhealthy {}

impl Health {
    pub(crate) fn of(status: &DriverStatus) -> Self {
        let live = live(status);
        let ready = live.clone().and_then(|()| ready(status));
        Self { live, ready }
    }
}

fn live(status: &DriverStatus) -> Result<(), Unhealthy> {
    let exceeding = |silent: Option<Duration>, limit| silent.filter(|silent| *silent > limit);
    if status.stage() == ConsumerStage::Ended {
        return Err(Unhealthy::Ended);
    }
    if let Some(silent) = exceeding(status.pending_ping_age(), RUNTIME_TIMEOUT) {
        return Err(Unhealthy::Runtime { silent });
    }
    if status.stale_certificate.load(Ordering::Relaxed) {
        return Err(Unhealthy::Certificate);
    }
    if status.is_unfetched() {
        return Err(Unhealthy::NotFetched);
    }
    match exceeding(status.since_last_poll(), status.max_poll_interval()) {
        // The last round drops the consumer, and `Serve` limits how long that may take.
        Some(silent) if status.stage() < ConsumerStage::Closing => {
            Err(Unhealthy::Driver { silent })
        }
        _ => Ok(()),
    }
}

fn ready(status: &DriverStatus) -> Result<(), Unhealthy> {
    match status.stage() {
        ConsumerStage::Starting => Err(Unhealthy::Starting),
        ConsumerStage::Serving if !status.is_assigned() => Err(Unhealthy::Unassigned),
        ConsumerStage::Serving if status.is_start_overdue(START_TIMEOUT) => {
            Err(Unhealthy::NotStarted)
        }
        ConsumerStage::Serving if status.is_store_unavailable() => Err(Unhealthy::StoreUnavailable),
        ConsumerStage::Serving => Ok(()),
        ConsumerStage::Draining | ConsumerStage::Closing | ConsumerStage::Ended => {
            Err(Unhealthy::ShuttingDown)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use super::*;
    use crate::source::{Assignment, Usage};

    const POLL: Duration = Duration::from_secs(300);

    async fn advance(time: Duration) {
        tokio::time::advance(time).await;
    }

    fn serving() -> DriverStatus {
        let status = DriverStatus::new(POLL);
        status.enter_stage(ConsumerStage::Serving);
        status.record_poll();
        status.assign(&[]);
        status
    }

    #[tokio::test(start_paused = true)]
    async fn consumer_not_yet_awaited_is_live_and_not_ready() {
        let status = DriverStatus::new(POLL);
        advance(POLL * 2).await;
        let health = Health::of(&status);
        assert_eq!((health.live, health.ready), (Ok(()), Err(Unhealthy::Starting)));
    }

    #[tokio::test(start_paused = true)]
    async fn runtime_that_does_not_answer_a_ping_is_not_live() {
        let status = serving();
        advance(RUNTIME_TIMEOUT * 2).await;
        assert_eq!(Health::of(&status).ready, Ok(()), "no ping was sent");
        assert!(status.start_ping());
        advance(RUNTIME_TIMEOUT).await;
        assert_eq!(Health::of(&status).live, Ok(()));
        assert!(!status.start_ping(), "a second ping is not sent");
        advance(Duration::from_millis(1)).await;
        let silent = RUNTIME_TIMEOUT + Duration::from_millis(1);
        assert_eq!(Health::of(&status).live, Err(Unhealthy::Runtime { silent }));
        status.finish_ping();
        assert_eq!(Health::of(&status).live, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn driver_without_polls_is_not_live_after_the_poll_interval() {
        let status = serving();
        advance(POLL).await;
        assert_eq!(Health::of(&status).live, Ok(()));
        advance(Duration::from_secs(1)).await;
        let dead = Err(Unhealthy::Driver { silent: POLL + Duration::from_secs(1) });
        assert_eq!(Health::of(&status), Health { live: dead.clone(), ready: dead });
        status.enter_stage(ConsumerStage::Closing);
        assert_eq!(Health::of(&status).live, Ok(()), "the consumer is being closed");
    }

    #[tokio::test(start_paused = true)]
    async fn partition_without_start_is_not_ready_after_a_minute() {
        let status = serving();
        let total: Arc<Usage> = Arc::default();
        let assignment = Assignment::new("t".into(), 0, total);
        let assignment = Arc::new(assignment);
        status.assign(std::slice::from_ref(&assignment));
        advance(START_TIMEOUT - Duration::from_millis(1)).await;
        assert_eq!(Health::of(&status).ready, Ok(()));
        advance(Duration::from_millis(1)).await;
        assert_eq!(Health::of(&status).ready, Err(Unhealthy::NotStarted));
        assignment.offset_range.set_start(0);
        assert_eq!(Health::of(&status).ready, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn unavailable_store_is_not_ready_but_live() {
        let status = serving();
        status.update(true, Vec::new(), HashMap::new());
        advance(POLL).await;
        status.record_poll();
        let health = Health::of(&status);
        assert_eq!((health.live, health.ready), (Ok(()), Err(Unhealthy::StoreUnavailable)));
        status.update(false, Vec::new(), HashMap::new());
        assert_eq!(Health::of(&status).ready, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn lost_assignment_is_not_ready_and_a_revoked_one_is() {
        let status = serving();
        status.revoke(false);
        assert_eq!(Health::of(&status).ready, Ok(()));
        status.revoke(true);
        assert_eq!(Health::of(&status).ready, Err(Unhealthy::Unassigned));
    }

    #[tokio::test(start_paused = true)]
    async fn shutting_down_consumer_is_live_and_not_ready() {
        let status = serving();
        for stage in [ConsumerStage::Draining, ConsumerStage::Closing] {
            status.enter_stage(stage);
            let health = Health::of(&status);
            assert_eq!((health.live, health.ready), (Ok(()), Err(Unhealthy::ShuttingDown)));
        }
        status.end();
        assert_eq!(Health::of(&status).live, Err(Unhealthy::Ended));
    }
}
