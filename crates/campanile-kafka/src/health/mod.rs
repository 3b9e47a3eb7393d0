//! Liveness and readiness of a consumer.

mod service;

use std::fmt;
use std::time::Duration;

pub use self::service::HealthService;
use crate::driver::Vitals;
use crate::status::Stage;

/// How long the program's runtime may take to run a task of the driver. This takes microseconds,
/// unless handlers block all threads of the runtime. 30 s is more than a busy machine ever takes,
/// and less than anyone should wait for a restart.
const ANSWER: Duration = Duration::from_secs(30);

/// The liveness and readiness of a consumer. Returned by [`Handle::health`](crate::Handle::health);
/// [`HealthService`] serves it over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Whether the driver itself makes progress. If not, only a restart helps.
    ///
    /// Two conditions are checked: the driver's thread polls Kafka, and the program's runtime,
    /// which runs the handlers, answers the driver. Nothing outside the process counts: the
    /// consumer stays live while the store or the brokers are unavailable, during a pause, and
    /// while a handler takes long. It is live before it serves, and not live after serving has
    /// ended.
    pub live: Result<(), Unhealthy>,
    /// Whether the consumer is live, its group has assigned partitions to it (possibly none, so a
    /// spare member is ready), the store answers, and the consumer is not shutting down.
    ///
    /// A paused consumer stays ready, so that a request to resume it still reaches it through a
    /// Kubernetes Service: see [`Handle::paused`](crate::Handle::paused). A store that was
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
    /// Not live: serving has ended.
    Ended,
    /// Not ready: the brokers or the topics have not been found yet.
    Starting,
    /// Not ready: the consumer is shutting down.
    ShuttingDown,
    /// Not ready: the group has not assigned anything yet, or the consumer was removed from its
    /// group.
    Unassigned,
    /// Not ready: the store does not answer, so no records are dispatched.
    StoreDown,
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
            Self::Ended => f.write_str("serving has ended"),
            Self::Starting => f.write_str("starting: brokers or topics have not been found yet"),
            Self::ShuttingDown => f.write_str("shutting down"),
            Self::Unassigned => f.write_str("the group has not assigned any partitions"),
            Self::StoreDown => f.write_str("the store does not answer; no records are dispatched"),
        }
    }
}

impl std::error::Error for Unhealthy {}

impl Health {
    pub(crate) fn of(vitals: &Vitals) -> Self {
        let live = live(vitals);
        let ready = live.clone().and_then(|()| ready(vitals));
        Self { live, ready }
    }
}

fn live(vitals: &Vitals) -> Result<(), Unhealthy> {
    let over = |silent: Option<Duration>, most| silent.filter(|silent| *silent > most);
    if vitals.stage() == Stage::Ended {
        return Err(Unhealthy::Ended);
    }
    if let Some(silent) = over(vitals.since_pinged(), ANSWER) {
        return Err(Unhealthy::Runtime { silent });
    }
    match over(vitals.since_round(), vitals.longest_round()) {
        // The last round drops the consumer, and `Serve` limits how long that may take.
        Some(silent) if vitals.stage() < Stage::Closing => Err(Unhealthy::Driver { silent }),
        _ => Ok(()),
    }
}

fn ready(vitals: &Vitals) -> Result<(), Unhealthy> {
    match vitals.stage() {
        Stage::Starting => Err(Unhealthy::Starting),
        Stage::Serving if !vitals.is_assigned() => Err(Unhealthy::Unassigned),
        Stage::Serving if vitals.is_store_down() => Err(Unhealthy::StoreDown),
        Stage::Serving => Ok(()),
        Stage::Draining | Stage::Closing | Stage::Ended => Err(Unhealthy::ShuttingDown),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const POLL: Duration = Duration::from_secs(300);

    async fn later(time: Duration) {
        tokio::time::advance(time).await;
    }

    fn serving() -> Vitals {
        let vitals = Vitals::new(POLL);
        vitals.enter(Stage::Serving);
        vitals.round();
        vitals.assign(&[]);
        vitals
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_not_awaited_is_live_however_long_it_takes_and_not_ready() {
        let vitals = Vitals::new(POLL);
        later(POLL * 2).await;
        let health = Health::of(&vitals);
        assert_eq!((health.live, health.ready), (Ok(()), Err(Unhealthy::Starting)));
    }

    #[tokio::test(start_paused = true)]
    async fn runtime_that_does_not_answer_a_ping_is_not_live() {
        let vitals = serving();
        later(ANSWER * 2).await;
        assert_eq!(Health::of(&vitals).ready, Ok(()), "no ping was sent");
        assert!(vitals.ping());
        later(ANSWER).await;
        assert_eq!(Health::of(&vitals).live, Ok(()));
        assert!(!vitals.ping(), "a second ping is not sent");
        later(Duration::from_millis(1)).await;
        let silent = ANSWER + Duration::from_millis(1);
        assert_eq!(Health::of(&vitals).live, Err(Unhealthy::Runtime { silent }));
        vitals.pong();
        assert_eq!(Health::of(&vitals).live, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_thread_that_begins_no_round_is_dead_once_its_group_has_given_it_up() {
        let vitals = serving();
        later(POLL).await;
        assert_eq!(Health::of(&vitals).live, Ok(()));
        later(Duration::from_secs(1)).await;
        let dead = Err(Unhealthy::Driver { silent: POLL + Duration::from_secs(1) });
        assert_eq!(Health::of(&vitals), Health { live: dead.clone(), ready: dead });
        vitals.enter(Stage::Closing);
        assert_eq!(Health::of(&vitals).live, Ok(()), "the consumer is being closed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_down_makes_it_unready_and_leaves_it_live() {
        let vitals = serving();
        vitals.update(true, HashMap::new());
        later(POLL).await;
        vitals.round();
        let health = Health::of(&vitals);
        assert_eq!((health.live, health.ready), (Ok(()), Err(Unhealthy::StoreDown)));
        vitals.update(false, HashMap::new());
        assert_eq!(Health::of(&vitals).ready, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_assignment_that_was_lost_makes_it_unready_and_a_revoke_does_not() {
        let vitals = serving();
        vitals.revoke(false);
        assert_eq!(Health::of(&vitals).ready, Ok(()));
        vitals.revoke(true);
        assert_eq!(Health::of(&vitals).ready, Err(Unhealthy::Unassigned));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_shuts_down_is_live_until_the_end_and_not_ready() {
        let vitals = serving();
        for stage in [Stage::Draining, Stage::Closing] {
            vitals.enter(stage);
            let health = Health::of(&vitals);
            assert_eq!((health.live, health.ready), (Ok(()), Err(Unhealthy::ShuttingDown)));
        }
        vitals.end();
        assert_eq!(Health::of(&vitals).live, Err(Unhealthy::Ended));
    }
}
