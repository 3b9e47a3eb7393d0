//! Runs one batch of commands.

use std::collections::{BTreeMap, HashSet};

use campanile_core::{Answer, Operation};
use campanile_idempotency::StoreError;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::call::Plan;
use crate::connection::ConnectionHandle;
use crate::router::{CallOutcome, InFlightGuard, MAX_REDIRECTIONS, Router};
use crate::wait::{Durability, Shortfall, WaitState};

/// A batch and its answers so far. The answers received are kept when the batch is cut short.
pub(crate) struct Batch<'a> {
    router: Router<'a>,
    answers: Vec<Option<Result<Answer, StoreError>>>,
    /// How often the answers of commands were lost, by index. A batch seldom has any.
    losses: BTreeMap<usize, Losses>,
}

/// How often an answer was lost before it was confirmed, by cause.
#[derive(Default)]
struct Losses {
    broken_connections: u8,
    redirections: u8,
}

/// Answers from one connection that still have to be confirmed.
struct Unconfirmed {
    handle: ConnectionHandle,
    answers: Vec<(usize, Result<Answer, StoreError>)>,
}

/// Commands of a connection, which broke, or whose keys moved, before their answers were confirmed.
struct LostAnswers {
    indices: Vec<usize>,
    error: RedisError,
}

/// Checks whether the keys of commands have moved to another node of the cluster.
fn is_redirection(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask))
}

impl<'a> Batch<'a> {
    pub(crate) fn new(router: Router<'a>) -> Self {
        Self { router, answers: vec![None; router.commands.len()], losses: BTreeMap::new() }
    }

    /// Runs all commands, and again those that could not be confirmed because of a broken connection
    /// or because their keys moved.
    pub(crate) async fn run(&mut self) {
        let commands = self.router.commands;
        debug_assert!(
            commands.iter().map(|command| &command.key).collect::<HashSet<_>>().len()
                == commands.len(),
            "the keys of a batch must be distinct"
        );
        let mut indices: Vec<_> = (0..commands.len()).collect();
        while !indices.is_empty() {
            let lost = self.attempt(indices).await;
            indices = lost.into_iter().flat_map(|lost| self.retry(lost)).collect();
        }
    }

    /// Returns the commands to send again, and fails the others. A broken connection is replaced
    /// once, and keys are followed as often as by the router.
    fn retry(&mut self, LostAnswers { indices, error }: LostAnswers) -> Vec<usize> {
        let is_redirection = is_redirection(&error);
        let (again, failed): (_, Vec<_>) = indices.into_iter().partition(|&index| {
            let Losses { broken_connections, redirections } = self.losses.entry(index).or_default();
            let (count, max) = match is_redirection {
                true => (redirections, MAX_REDIRECTIONS),
                false => (broken_connections, 1),
            };
            *count += 1;
            *count <= max
        });
        self.fail_commands(failed, &StoreError::unavailable(error));
        again
    }

    /// Takes the answers, with the error `missing` for each command without an answer.
    pub(crate) fn take_answers(
        &mut self,
        missing: impl Fn() -> StoreError,
    ) -> Vec<Result<Answer, StoreError>> {
        let answers = std::mem::take(&mut self.answers).into_iter();
        let answers = answers.enumerate().map(|(index, answer)| match answer {
            Some(Err(error)) if self.losses.contains_key(&index) => Err(error.possibly_sent()),
            Some(answer) => answer,
            None => Err(missing()),
        });
        answers.collect()
    }

    /// Runs these commands. Returns the commands whose answers were lost before they were confirmed.
    async fn attempt(&mut self, indices: Vec<usize>) -> Vec<LostAnswers> {
        let router = self.router;
        let buckets = router.topology.cluster().map(|_| router.store.buckets);
        let plan = Plan::new(router.commands, &indices, buckets);
        for &index in &plan.unsupported {
            let error = "this version of the store does not support the operation";
            self.fail_commands([index], &StoreError::unavailable(error));
        }
        // Kept apart from `answers`: a batch that is cut short must not return unconfirmed answers.
        let mut unconfirmed: Vec<Unconfirmed> = Vec::new();
        if let [call] = &*plan.calls {
            // The usual case: a single call has no other to run concurrently with.
            let outcomes = Box::pin(router.dispatch(&plan, call)).await;
            self.record_outcomes(outcomes, &mut unconfirmed);
        } else {
            let dispatch = |call| router.dispatch(&plan, call);
            let mut calls: FuturesUnordered<_> = plan.calls.iter().map(dispatch).collect();
            while let Some(outcomes) = calls.next().await {
                self.record_outcomes(outcomes, &mut unconfirmed);
            }
        }
        self.confirm_all(unconfirmed).await
    }

    /// Records the answers of a call. Answers that must be confirmed are added to `unconfirmed`.
    fn record_outcomes(&mut self, outcomes: Vec<CallOutcome>, unconfirmed: &mut Vec<Unconfirmed>) {
        let needs_confirmation = self.router.store.wait_state.is_some();
        for CallOutcome { indices, result } in outcomes {
            let (answers, handle) = match result {
                Ok(answered) => answered,
                Err(error) => {
                    self.fail_commands(indices, &error);
                    continue;
                }
            };
            for (index, answer) in indices.into_iter().zip(answers) {
                if needs_confirmation && Durability::applies_to(&answer) {
                    match unconfirmed.iter_mut().find(|other| other.handle.is_same(&handle)) {
                        Some(other) => other.answers.push((index, answer)),
                        None => unconfirmed.push(Unconfirmed {
                            handle: handle.clone(),
                            answers: vec![(index, answer)],
                        }),
                    }
                } else {
                    self.answers[index] = Some(answer);
                }
            }
        }
    }

    /// Confirms the answers of each connection. Returns the commands whose answers were lost
    /// meanwhile.
    async fn confirm_all(&mut self, unconfirmed: Vec<Unconfirmed>) -> Vec<LostAnswers> {
        let router = self.router;
        let mut lost = Vec::new();
        let Some(WaitState { durability, shortfalls, .. }) = &router.store.wait_state else {
            return lost;
        };
        let confirm = |unconfirmed| router.confirm(*durability, unconfirmed);
        let mut confirmed: FuturesUnordered<_> = unconfirmed.into_iter().map(confirm).collect();
        while let Some((Unconfirmed { handle, answers }, shortfall)) = confirmed.next().await {
            match shortfall {
                Ok(shortfall) => {
                    if shortfall.is_some() {
                        router.topology.recheck_primary();
                    }
                    let completed = self.record_confirmed(answers, shortfall.as_ref());
                    shortfalls.record(handle.address(), completed, shortfall.as_ref());
                }
                Err(error) => {
                    if !is_redirection(&error) {
                        handle.discard(&error);
                    }
                    let indices = answers.into_iter().map(|(index, _)| index).collect();
                    lost.push(LostAnswers { indices, error });
                }
            }
        }
        lost
    }

    /// Records the answers after a wait; `shortfall` is set if their writes have not reached the
    /// required replicas or disks in time. In that case a lock or a step is refused, but a completion is
    /// still answered as one, because the work it records is done. Returns the number of
    /// completions.
    fn record_confirmed(
        &mut self,
        answers: Vec<(usize, Result<Answer, StoreError>)>,
        shortfall: Option<&Shortfall>,
    ) -> usize {
        let error = shortfall.cloned().map(StoreError::unavailable);
        let mut completed = 0;
        for (index, answer) in answers {
            let operation = &self.router.commands[index].operation;
            let is_completion = matches!(operation, Operation::Complete { .. });
            completed += usize::from(is_completion);
            self.answers[index] = Some(match &error {
                Some(error) if !is_completion => Err(error.clone()),
                _ => answer,
            });
        }
        completed
    }

    fn fail_commands(&mut self, indices: impl IntoIterator<Item = usize>, error: &StoreError) {
        for index in indices {
            self.answers[index] = Some(Err(error.clone()));
        }
    }
}

impl Router<'_> {
    async fn confirm(
        &self,
        durability: Durability,
        unconfirmed: Unconfirmed,
    ) -> (Unconfirmed, Result<Option<Shortfall>, RedisError>) {
        let Unconfirmed { handle, answers } = &unconfirmed;
        let (first, _) = answers.first().expect("an answer to confirm");
        let key = &self.commands[*first].key;
        let mut guard = InFlightGuard::on_connection(handle);
        let shortfall = durability.confirm(handle, key, self.store.buckets).await;
        guard.finish();
        (unconfirmed, shortfall)
    }
}
