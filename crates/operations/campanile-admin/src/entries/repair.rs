//! Changes an entry on behalf of an operator, after a plan.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use campanile_core::{
    Command, Entry, ExpireOutcome, Grant, IdempotencyKey, Operation, Reply, Retention, State,
    StoreKey, expire,
};
use campanile_idempotency::{ExpireStore, Found, InspectStore};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::report::{EntryReport, inspect, is_reopened};
use crate::AdminError;
use crate::time::Period;

/// The beginning of the error of an entry that was unlocked.
const UNLOCKED: &str = "unlocked by an operator";

/// The error of an entry that is unlocked. It keeps the last error of the handler, which says more.
fn unlocked(entry: &Entry) -> Cow<'_, str> {
    match entry.error() {
        None => UNLOCKED.into(),
        Some(error) if is_unlocked(entry) => error,
        Some(error) => format!("{UNLOCKED}; the last error before: {error}").into(),
    }
}

/// Checks whether the last attempt was ended by an operator.
pub(crate) fn is_unlocked(entry: &Entry) -> bool {
    entry.error().is_some_and(|error| error.starts_with(UNLOCKED))
}

/// What a repair found and what it will do. `Display` shows both in words.
///
/// Making a plan changes nothing. [`apply`](Self::apply) changes the entry only if no other operation
/// has changed it since.
#[derive(Clone, Debug)]
pub struct RepairPlan {
    entry: EntryReport,
    /// Why nothing can be done, or what is done and its effect.
    step: Result<Step, &'static str>,
}

#[derive(Clone, Debug)]
struct Step {
    change: Change,
    effect: Cow<'static, str>,
}

#[derive(Clone, Debug)]
enum Change {
    Apply(Operation),
    /// Sets when the entry expires.
    Expire(Duration),
}

/// The result of [`RepairPlan::apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RepairOutcome {
    /// The entry is as planned.
    Done,
    /// Nothing was changed, because the entry is no longer the one of the plan.
    Changed,
    /// Nothing was changed, because the plan is to change nothing.
    Impossible,
}

impl fmt::Display for RepairOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "done",
            Self::Changed => "nothing changed: the entry has changed since the plan was made, or is being changed",
            Self::Impossible => "nothing changed",
        })
    }
}

impl RepairPlan {
    /// Plans to reopen a key: the next delivery of it is processed, with all its attempts. See
    /// [`Store::redrive`](campanile_idempotency::Store::redrive).
    ///
    /// A key that is FAILED can be reopened. With `force`, also one that is COMPLETED or RETRYING.
    ///
    /// # Errors
    /// Fails if the store does not answer.
    pub async fn reopen(
        store: &impl InspectStore,
        key: &StoreKey,
        force: bool,
    ) -> Result<Self, AdminError> {
        Self::new(store, key, |report, entry| {
            let effect = match entry.state() {
                State::Processing if report.is_stuck() => {
                    return Err(
                        "Its owner is gone: the next delivery takes it over by itself. To reopen \
                                it, unlock it first.",
                    );
                }
                State::Processing => {
                    return Err("It is being processed: wait for the end, or unlock it.");
                }
                State::Retrying if is_reopened(entry) => {
                    return Err(
                        "It is reopened already: produce its record again, if that is done.",
                    );
                }
                State::Retrying if !force => {
                    return Err("It is not given up: it is retried by itself. To give it all its \
                                attempts again, use force.");
                }
                State::Completed if !force => {
                    return Err(
                        "It is completed: its handler has run. To run it again, use force.",
                    );
                }
                State::Completed => {
                    "The handler runs again for the next delivery of the key, so its effect may \
                     happen twice. The stored reply is dropped."
                }
                State::Retrying => {
                    "The attempts are counted from 0 again, and the next delivery is processed without \
                     a wait. A consumer that holds the record waits for the time that it knows."
                }
                State::Failed => {
                    "The attempts are counted from 0 again. The next delivery of the key is \
                     processed: produce its record again, because its offset is committed."
                }
            };
            let redrive = Operation::Redrive { token: entry.token(), force };
            Ok(Step { change: Change::Apply(redrive), effect: effect.into() })
        })
        .await
    }

    /// Plans to take the lock of a key from its owner, by a failed attempt without backoff.
    ///
    /// An owner that still runs the handler learns at its next renewal that its lock is lost. Then, by
    /// default, the handler's future is dropped; code that blocks a thread or was spawned continues.
    /// Its outcome is not recorded. The next delivery may run the handler before that, at the same
    /// time. Its fencing token is higher, so that a receiver that compares tokens refuses the former
    /// owner.
    ///
    /// # Errors
    /// Fails if the store does not answer.
    pub async fn unlock(store: &impl InspectStore, key: &StoreKey) -> Result<Self, AdminError> {
        Self::new(store, key, |report, entry| {
            let (State::Processing, Some(owner)) = (entry.state(), entry.owner()) else {
                return Err("It is not PROCESSING: there is no lock.");
            };
            let effect = if report.is_stuck() {
                "The lock has expired, so the next delivery would take the key over in any case. \
                 Unlocked, it cannot be completed any more by its owner, if that still runs."
            } else {
                "If its owner still runs the handler, the handler continues until the next renewal at \
                 least, and its outcome is not recorded. The next delivery runs the handler again, \
                 perhaps at the same time. The attempt counts."
            };
            // The error of a give-up lock is the handler's, which the next dead letter needs.
            let error = if entry.is_give_up() { "".into() } else { unlocked(entry) };
            let grant = Grant { token: entry.token(), owner };
            let (delay, last) = (Duration::ZERO, false);
            let fail = Operation::Fail { grant, delay, last, error: (*error).into() };
            Ok(Step { change: Change::Apply(fail), effect: effect.into() })
        })
        .await
    }

    /// Plans to let an entry expire `after` from the time of the change, or to delete it if that is
    /// zero. A delivery of the key after that is processed as that of a new one.
    ///
    /// Neither a locked entry can expire, nor one within a
    /// [minute](campanile_core::limits::MIN_RETENTION) after its last grant.
    ///
    /// # Errors
    /// Fails if the store does not answer.
    pub async fn expire(
        store: &impl InspectStore,
        key: &StoreKey,
        after: Duration,
    ) -> Result<Self, AdminError> {
        Self::new(store, key, |report, entry| {
            if report.is_locked() {
                return Err("It is being processed, and the end of the attempt sets the time anew: \
                            wait for the end, or unlock it first.");
            }
            if expire(Some(entry), entry, after, report.now()) != ExpireOutcome::Done {
                return Err("It was granted less than a minute ago, and is kept for a minute, so that \
                            the next fencing token is higher: choose a later time, or try again.");
            }
            let consequence = match entry.state() {
                State::Completed => "runs the handler again, so its effect may happen twice.",
                State::Failed => {
                    "is processed, with all its attempts; if they fail, there is a second dead letter."
                }
                State::Processing | State::Retrying => {
                    "has all its attempts. An attempt before that sets the time anew."
                }
            };
            let effect = match after.is_zero() {
                true => format!("It is deleted. A delivery of the key after that {consequence}"),
                false => format!(
                    "It expires {} after the change. A delivery of the key after that {consequence}",
                    Period(after),
                ),
            };
            Ok(Step { change: Change::Expire(after), effect: effect.into() })
        })
        .await
    }

    async fn new(
        store: &impl InspectStore,
        key: &StoreKey,
        decide: impl FnOnce(&EntryReport, &Entry) -> Result<Step, &'static str>,
    ) -> Result<Self, AdminError> {
        let entry = inspect(store, key).await?;
        let step = match entry.found() {
            Found::Entry { entry: found, .. } => decide(&entry, found),
            Found::Unreadable { .. } => {
                Err("The value is no entry of this version. Use a later version of this command.")
            }
            _ => Err("There is no entry: the next delivery of the key is processed."),
        };
        Ok(Self { entry, step })
    }

    /// Adds the idempotency key to the entry, as [`EntryReport::with_key`] does.
    #[must_use]
    pub fn with_key(self, key: &IdempotencyKey) -> Self {
        Self { entry: self.entry.with_key(key), ..self }
    }

    /// Returns the entry that was found.
    pub fn entry(&self) -> &EntryReport {
        &self.entry
    }

    /// Checks whether there is anything to do.
    pub fn is_possible(&self) -> bool {
        self.step.is_ok()
    }

    /// Returns what will happen, or why nothing can be done.
    pub fn effect(&self) -> &str {
        match &self.step {
            Ok(step) => &step.effect,
            Err(reason) => reason,
        }
    }

    /// Changes the entry as planned, if it is still the one that was found.
    ///
    /// Unless it is to expire, the changed entry is kept for [`Retention::default`], whatever the
    /// settings of the application.
    ///
    /// # Errors
    /// Fails if the store does not answer. It is then unknown whether the entry was changed, and the
    /// plan can be applied again.
    ///
    /// # Cancellation
    /// As after an error.
    pub async fn apply(&self, store: &impl ExpireStore) -> Result<RepairOutcome, AdminError> {
        let Ok(Step { change, .. }) = &self.step else {
            return Ok(RepairOutcome::Impossible);
        };
        let is_done = match change {
            Change::Apply(operation) => {
                let command = Command {
                    key: self.entry.key().clone(),
                    operation: operation.clone(),
                    retention: Retention::default(),
                };
                let answer = store.apply(command).await;
                answer.map(|answer| matches!(answer.reply, Reply::Reopened | Reply::Retrying))
            }
            Change::Expire(after) => {
                let entry =
                    self.entry.entry().map(|entry| (self.entry.key().clone(), entry.clone()));
                let outcomes = store.expire(entry.as_slice(), *after).await;
                outcomes.map(|outcomes| outcomes == [ExpireOutcome::Done])
            }
        };
        let is_done =
            is_done.map_err(|error| AdminError::store("cannot change the entry", error))?;
        Ok(if is_done { RepairOutcome::Done } else { RepairOutcome::Changed })
    }
}

/// An object with the fields `entry`, `is_possible` and `effect`.
impl Serialize for RepairPlan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("entry", &self.entry)?;
        map.serialize_entry("is_possible", &self.is_possible())?;
        map.serialize_entry("effect", self.effect())?;
        map.end()
    }
}

impl fmt::Display for RepairPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n\n{}", self.entry, self.effect())
    }
}
