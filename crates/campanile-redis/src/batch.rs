//! One batch on its way.

use std::collections::HashMap;

use campanile_core::{Answer, Command, Namespace, Operation};
use campanile_idempotency::StoreError;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::RedisError;

use crate::call::Plan;
use crate::connection::{Connections, Link};
use crate::failure::Failure;
use crate::key::write_barrier_key;
use crate::namespace::compare_buckets;
use crate::reply;
use crate::store::Inner;
use crate::wait::{Wait, Waiting};

/// A batch, and the answers so far. They stay when the batch is cut short.
pub(crate) struct Batch<'a> {
    store: &'a Inner,
    connections: &'a Connections,
    commands: &'a [Command],
    answers: Vec<Option<Result<Answer, StoreError>>>,
    /// The connection that was last tried.
    link: Option<Link>,
}

/// Commands whose connection broke before they were answered. They may have been applied.
struct Broken {
    indices: Vec<usize>,
    error: RedisError,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(
        store: &'a Inner,
        connections: &'a Connections,
        commands: &'a [Command],
    ) -> Self {
        Self { store, connections, commands, answers: vec![None; commands.len()], link: None }
    }

    /// Performs all commands: those on one key one after the other, all others together.
    pub(crate) async fn run(&mut self) {
        for wave in waves(self.commands) {
            self.perform(wave).await;
        }
    }

    /// The answers; this error where there is none.
    pub(crate) fn answers(&mut self, missing: &StoreError) -> Vec<Result<Answer, StoreError>> {
        let missing = || Err(missing.clone());
        std::mem::take(&mut self.answers)
            .into_iter()
            .map(|answer| answer.unwrap_or_else(missing))
            .collect()
    }

    /// The connection that was last tried, if there was one.
    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    /// Performs commands on distinct keys. A connection that turns out to be broken (the server was
    /// restarted, a firewall forgot it) or read-only (there was a failover) is replaced, and what
    /// it did not answer goes once more, over the new one: every command can be repeated.
    async fn perform(&mut self, indices: Vec<usize>) {
        let Some(broken) = self.attempt(indices).await else {
            return;
        };
        let Some(broken) = self.attempt(broken.indices).await else {
            return;
        };
        self.refuse(broken.indices, &StoreError::unavailable(broken.error));
    }

    /// Performs commands over the connection as it is, and answers all but those that it gives
    /// back.
    async fn attempt(&mut self, indices: Vec<usize>) -> Option<Broken> {
        let Inner { scripts, buckets, .. } = self.store;
        let Self { connections, commands, .. } = *self;
        let link = match connections.link().await {
            Ok(link) => link,
            Err(error) => {
                self.refuse(indices, &error);
                return None;
            }
        };
        self.link = Some(link.clone());

        let mut broken = None;
        let indices = self.in_agreed_namespaces(&link, indices, &mut broken).await;
        let plan = Plan::new(commands, &indices);
        if !plan.unknown.is_empty() {
            let error = "this version of the store does not know the operation";
            self.refuse(plan.unknown.iter().copied(), &StoreError::unavailable(error));
        }
        // Kept apart: a batch that is cut short is not to answer what was not waited for.
        let mut unconfirmed = Vec::new();
        let run = async |call| (call, plan.run(call, scripts, *buckets, &link).await);
        let mut calls: FuturesUnordered<_> = plan.calls.iter().map(run).collect();
        while let Some((call, reply)) = calls.next().await {
            let commands = call.indices().map(|index| &commands[index]);
            match reply.and_then(|value| reply::answers(value, call.shared.verb, commands)) {
                Ok(answers) => {
                    for (index, answer) in call.indices().zip(answers) {
                        if self.store.waiting.is_some() && Wait::is_for(&answer) {
                            unconfirmed.push((index, answer));
                        } else {
                            self.answers[index] = Some(answer);
                        }
                    }
                }
                Err(failure) => self.fail(call.indices(), failure, &mut broken),
            }
        }
        self.confirm(&link, unconfirmed, &mut broken).await;
        if let Some(Broken { error, .. }) = &broken {
            connections.discard(&link, error);
        }
        broken
    }

    /// The commands whose namespace is known to have as many buckets as this store believes.
    async fn in_agreed_namespaces(
        &mut self,
        link: &Link,
        indices: Vec<usize>,
        broken: &mut Option<Broken>,
    ) -> Vec<usize> {
        let mut agreed: Option<&Namespace> = None;
        let mut kept = Vec::with_capacity(indices.len());
        for index in indices {
            let namespace = self.commands[index].key.namespace();
            if agreed != Some(namespace) {
                if let Err(failure) = compare_buckets(link, namespace, self.store.buckets).await {
                    self.fail([index].into_iter(), failure, broken);
                    continue;
                }
                agreed = Some(namespace);
            }
            kept.push(index);
        }
        kept
    }

    /// Answers locks and completions once they have come as far as they must. A lock that has not
    /// is refused; a completion that has not is one all the same, for what it completes was done.
    async fn confirm(
        &mut self,
        link: &Link,
        unconfirmed: Vec<(usize, Result<Answer, StoreError>)>,
        broken: &mut Option<Broken>,
    ) {
        let (Some(Waiting { wait, shortfalls, .. }), Some(&(first, _))) =
            (&self.store.waiting, unconfirmed.first())
        else {
            return;
        };
        let mut key = Vec::new();
        write_barrier_key(&mut key, &self.commands[first].key, self.store.buckets);
        let short = match wait.confirm(link, &key).await {
            Ok(short) => short,
            Err(error) => {
                let indices = unconfirmed.into_iter().map(|(index, _)| index);
                return self.fail(indices, Failure::Connection(error), broken);
            }
        };
        let refusal = short.clone().map(StoreError::unavailable);
        let mut completed = 0;
        for (index, answer) in unconfirmed {
            let is_completion =
                matches!(self.commands[index].operation, Operation::Complete { .. });
            completed += usize::from(is_completion);
            self.answers[index] = Some(match &refusal {
                Some(refusal) if !is_completion => Err(refusal.clone()),
                _ => answer,
            });
        }
        shortfalls.note(self.connections.address(), completed, short.as_ref());
    }

    /// Notes what failed with its connection, and answers what failed for good.
    fn fail(
        &mut self,
        indices: impl Iterator<Item = usize>,
        failure: Failure,
        broken: &mut Option<Broken>,
    ) {
        match failure {
            Failure::Connection(error) => {
                let broken = broken.get_or_insert(Broken { indices: Vec::new(), error });
                broken.indices.extend(indices);
            }
            Failure::Final(error) => self.refuse(indices, &error),
        }
    }

    fn refuse(&mut self, indices: impl IntoIterator<Item = usize>, error: &StoreError) {
        for index in indices {
            self.answers[index] = Some(Err(error.clone()));
        }
    }
}

/// The commands by turns, in which no key comes twice, for a script's keys must be distinct.
/// Usually there is one.
fn waves(commands: &[Command]) -> Vec<Vec<usize>> {
    let mut turns = HashMap::with_capacity(commands.len());
    let mut waves: Vec<Vec<usize>> = Vec::with_capacity(1);
    for (index, command) in commands.iter().enumerate() {
        let turn = turns.entry(&command.key).or_insert(0);
        match waves.get_mut(*turn) {
            Some(wave) => wave.push(index),
            None => {
                let mut wave = Vec::with_capacity(commands.len() - index);
                wave.push(index);
                waves.push(wave);
            }
        }
        *turn += 1;
    }
    waves
}

#[cfg(test)]
mod tests {
    use campanile_core::{IdempotencyKey, Operation, Owner, Retention, StoreKey};

    use super::*;

    #[test]
    fn a_key_that_comes_again_waits_for_its_turn() {
        let command = |key: &'static str| Command {
            key: StoreKey::new(
                Namespace::try_from("n").unwrap(),
                IdempotencyKey::new(key).unwrap(),
            ),
            operation: Operation::Cancel { owner: Owner::new(1).unwrap() },
            retention: Retention::default(),
        };
        let commands = ["a", "b", "a", "c", "a", "b"].map(command);
        assert_eq!(waves(&commands), [vec![0, 1, 3], vec![2, 5], vec![4]]);
    }
}
