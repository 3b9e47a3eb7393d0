//! Runs one batch of commands.

use std::collections::HashSet;

use campanile_core::{Answer, Operation};
use campanile_idempotency::StoreError;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::RedisError;

use crate::call::Plan;
use crate::connection::Link;
use crate::delivery::{Delivered, Delivery, Way};
use crate::key::write_barrier_key;
use crate::wait::{Short, Wait, Waiting};

/// A batch and its answers so far. The answers received are kept when the batch is cut short.
pub(crate) struct Batch<'a> {
    delivery: Delivery<'a>,
    answers: Vec<Option<Result<Answer, StoreError>>>,
}

/// Answers from one connection that still have to be confirmed.
struct Unconfirmed {
    link: Link,
    answers: Vec<(usize, Result<Answer, StoreError>)>,
}

/// Commands that lost their connection before their answers were confirmed.
struct Broken {
    indices: Vec<usize>,
    error: RedisError,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(delivery: Delivery<'a>) -> Self {
        Self { delivery, answers: vec![None; delivery.commands.len()] }
    }

    /// Runs all commands, and once more those that could not be confirmed because of a broken
    /// connection.
    pub(crate) async fn run(&mut self) {
        let commands = self.delivery.commands;
        debug_assert!(
            commands.iter().map(|command| &command.key).collect::<HashSet<_>>().len()
                == commands.len(),
            "the keys of a batch must be distinct"
        );
        let Some(broken) = self.attempt((0..commands.len()).collect()).await else {
            return;
        };
        let again = broken.indices.clone();
        if let Some(broken) = self.attempt(broken.indices).await {
            self.refuse(broken.indices, &StoreError::unavailable(broken.error));
        }
        for index in again {
            let answer = self.answers[index].take();
            self.answers[index] = answer.map(|it| it.map_err(StoreError::but_sent_before));
        }
    }

    /// Takes the answers, with the error `missing` for each command without an answer.
    pub(crate) fn answers(
        &mut self,
        missing: impl Fn() -> StoreError,
    ) -> Vec<Result<Answer, StoreError>> {
        let answers = std::mem::take(&mut self.answers).into_iter();
        answers.map(|answer| answer.unwrap_or_else(|| Err(missing()))).collect()
    }

    /// Runs these commands. Returns the commands that lost their connection before they were
    /// confirmed.
    async fn attempt(&mut self, indices: Vec<usize>) -> Option<Broken> {
        let delivery = self.delivery;
        let spread = delivery.topology.cluster().map(|_| delivery.store.buckets);
        let plan = Plan::new(delivery.commands, &indices, spread);
        if !plan.unknown.is_empty() {
            let error = "this version of the store does not support the operation";
            self.refuse(plan.unknown.iter().copied(), &StoreError::unavailable(error));
        }
        // Kept apart from `answers`: a batch that is cut short must not return unconfirmed answers.
        let mut unconfirmed: Vec<Unconfirmed> = Vec::new();
        if let [call] = &*plan.calls {
            // The usual case: a single call has no other to run concurrently with.
            let delivered = Box::pin(delivery.deliver(&plan, call)).await;
            self.arrived(delivered, &mut unconfirmed);
        } else {
            let deliver = |call| delivery.deliver(&plan, call);
            let mut calls: FuturesUnordered<_> = plan.calls.iter().map(deliver).collect();
            while let Some(delivered) = calls.next().await {
                self.arrived(delivered, &mut unconfirmed);
            }
        }
        self.confirm_all(unconfirmed).await
    }

    /// Records the answers of a call. Answers that must be confirmed are added to `unconfirmed`.
    fn arrived(&mut self, delivered: Vec<Delivered>, unconfirmed: &mut Vec<Unconfirmed>) {
        let is_confirming = self.delivery.store.waiting.is_some();
        for Delivered { indices, outcome } in delivered {
            let (answers, link) = match outcome {
                Ok(answered) => answered,
                Err(error) => {
                    self.refuse(indices, &error);
                    continue;
                }
            };
            for (index, answer) in indices.into_iter().zip(answers) {
                if is_confirming && Wait::is_for(&answer) {
                    match unconfirmed.iter_mut().find(|other| other.link.is(&link)) {
                        Some(other) => other.answers.push((index, answer)),
                        None => unconfirmed.push(Unconfirmed {
                            link: link.clone(),
                            answers: vec![(index, answer)],
                        }),
                    }
                } else {
                    self.answers[index] = Some(answer);
                }
            }
        }
    }

    /// Confirms the answers of each connection. Returns the commands that lost their connection
    /// meanwhile.
    async fn confirm_all(&mut self, unconfirmed: Vec<Unconfirmed>) -> Option<Broken> {
        let delivery = self.delivery;
        let Waiting { wait, shortfalls, .. } = delivery.store.waiting.as_ref()?;
        let mut broken: Option<Broken> = None;
        let confirm = |unconfirmed| delivery.confirm(*wait, unconfirmed);
        let mut confirmed: FuturesUnordered<_> = unconfirmed.into_iter().map(confirm).collect();
        while let Some((Unconfirmed { link, answers }, short)) = confirmed.next().await {
            match short {
                Ok(short) => {
                    if short.is_some() {
                        delivery.topology.doubt();
                    }
                    let completed = self.confirmed(answers, short.as_ref());
                    shortfalls.note(link.address(), completed, short.as_ref());
                }
                Err(error) => {
                    link.discard(&error);
                    let broken = broken.get_or_insert(Broken { indices: Vec::new(), error });
                    broken.indices.extend(answers.into_iter().map(|(index, _)| index));
                }
            }
        }
        broken
    }

    /// Records locks and completions after a wait; `short` is set if they have not reached the
    /// required replicas or disks in time. In that case a lock is refused, but a completion is
    /// still answered as one, because the work it records is done. Returns the number of
    /// completions.
    fn confirmed(
        &mut self,
        answers: Vec<(usize, Result<Answer, StoreError>)>,
        short: Option<&Short>,
    ) -> usize {
        let refusal = short.cloned().map(StoreError::unavailable);
        let mut completed = 0;
        for (index, answer) in answers {
            let operation = &self.delivery.commands[index].operation;
            let is_completion = matches!(operation, Operation::Complete { .. });
            completed += usize::from(is_completion);
            self.answers[index] = Some(match &refusal {
                Some(refusal) if !is_completion => Err(refusal.clone()),
                _ => answer,
            });
        }
        completed
    }

    fn refuse(&mut self, indices: impl IntoIterator<Item = usize>, error: &StoreError) {
        for index in indices {
            self.answers[index] = Some(Err(error.clone()));
        }
    }
}

impl Delivery<'_> {
    async fn confirm(
        &self,
        wait: Wait,
        unconfirmed: Unconfirmed,
    ) -> (Unconfirmed, Result<Option<Short>, RedisError>) {
        let Unconfirmed { link, answers } = &unconfirmed;
        let mut key = Vec::new();
        if let Some(&(first, _)) = answers.first() {
            write_barrier_key(&mut key, &self.commands[first].key, self.store.buckets);
        }
        let mut way = Way::over(link);
        let short = wait.confirm(link, &key).await;
        way.end();
        (unconfirmed, short)
    }
}
