//! One batch on its way.

use std::collections::HashMap;
use std::error::Error;

use campanile_core::{Answer, Command};
use campanile_idempotency::StoreError;
use futures_util::future::join_all;

use crate::call::Call;
use crate::pool::Pool;

/// A batch, and the answers so far. They stay when the batch is cut short.
pub(crate) struct Batch<'a> {
    pool: &'a Pool,
    commands: &'a [Command],
    answers: Vec<Option<Result<Answer, StoreError>>>,
    /// Whether some of it may have been sent.
    was_sent: bool,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(pool: &'a Pool, commands: &'a [Command]) -> Self {
        Self { pool, commands, answers: vec![None; commands.len()], was_sent: false }
    }

    /// Performs all commands: those on one key one after the other, all others together.
    pub(crate) async fn run(&mut self) {
        for wave in waves(self.commands) {
            let Some(again) = self.attempt(wave, false).await else {
                continue;
            };
            // The connection broke: the server was restarted, or is a replica now. What was not
            // answered goes once more, over a new one: every command can be repeated.
            self.pool.renew();
            let left = self.attempt(again, true).await;
            debug_assert!(left.is_none(), "what fails twice is refused");
        }
    }

    /// Whether what is not answered may have been sent.
    pub(crate) fn was_sent(&self) -> bool {
        self.was_sent
    }

    /// The answers; this error where there is none.
    pub(crate) fn answers(self, missing: &StoreError) -> Vec<Result<Answer, StoreError>> {
        self.answers.into_iter().map(|it| it.unwrap_or_else(|| Err(missing.clone()))).collect()
    }

    /// Performs commands on distinct keys over one connection. Gives back those that another may
    /// perform; the second time, none.
    async fn attempt(&mut self, indices: Vec<usize>, is_second: bool) -> Option<Vec<usize>> {
        let lease = match self.pool.lease().await {
            Ok(lease) => lease,
            Err(error) => {
                let error = self.pool.unreachable(error);
                self.refuse(indices, &if is_second { error.but_sent_before() } else { error });
                return None;
            }
        };
        self.was_sent = true;
        let commands = self.commands;
        let (calls, unknown) = Call::group(indices.iter().map(|&index| (index, &commands[index])));
        if !unknown.is_empty() {
            let error = "this version of the store does not know the operation";
            self.refuse(unknown, &StoreError::unavailable(error));
        }
        // They are written one after the other, without waiting, and performed like that.
        let outcomes = join_all(calls.iter().map(|call| call.run(&*lease))).await;
        let (mut again, mut has_failed) = (Vec::new(), false);
        for (call, outcome) in calls.iter().zip(outcomes) {
            match outcome {
                Ok(answers) => {
                    for (index, answer) in call.indices().zip(answers) {
                        self.answers[index] = Some(Ok(answer));
                    }
                    continue;
                }
                Err(failure) if failure.may_pass() && !is_second => {
                    let (address, error) = (self.pool.address(), StoreError::from(failure));
                    tracing::warn!(address, error = &error as &dyn Error, "a call broke off");
                    again.extend(call.indices());
                }
                Err(failure) => self.refuse(call.indices(), &failure.into()),
            }
            has_failed = true;
        }
        if !has_failed {
            lease.end();
        }
        Some(again).filter(|again| !again.is_empty())
    }

    fn refuse(&mut self, indices: impl IntoIterator<Item = usize>, error: &StoreError) {
        for index in indices {
            self.answers[index] = Some(Err(error.clone()));
        }
    }
}

/// Places of commands on distinct keys, to be performed together; those on one key in their order.
fn waves(commands: &[Command]) -> Vec<Vec<usize>> {
    let mut seen = HashMap::with_capacity(commands.len());
    let mut waves: Vec<Vec<usize>> = Vec::new();
    for (index, command) in commands.iter().enumerate() {
        let wave: &mut usize = seen.entry(&command.key).or_default();
        if *wave == waves.len() {
            waves.push(Vec::new());
        }
        waves[*wave].push(index);
        *wave += 1;
    }
    waves
}
