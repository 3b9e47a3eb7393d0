//! The execution of one batch.

use std::collections::HashSet;
use std::error::Error;

use campanile_core::{Answer, Command, Operation};
use campanile_idempotency::StoreError;
use futures_util::future::{join, join_all};
use tokio::time::{Instant, timeout, timeout_at};

use crate::call::{Call, Schema};
use crate::connect::SESSION_POOLING_ADVICE;
use crate::failure::Failure;
use crate::pool::{Lease, Pool};

type CallResult = Result<Vec<Answer>, Failure>;

/// A batch and its answers so far. If the batch is cut short, it keeps the answers that it has.
pub(crate) struct Batch<'a> {
    pool: &'a Pool,
    schema: &'a Schema,
    commands: &'a [Command],
    answers: Vec<Option<Result<Answer, StoreError>>>,
    /// Commands not answered by the deadline stay without an answer.
    deadline: Instant,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(
        pool: &'a Pool,
        schema: &'a Schema,
        commands: &'a [Command],
        deadline: Instant,
    ) -> Self {
        Self { pool, schema, commands, answers: vec![None; commands.len()], deadline }
    }

    /// Performs the commands; those not answered by the deadline stay without an answer.
    pub(crate) async fn run(&mut self) {
        if timeout_at(self.deadline, self.perform()).await.is_err() {
            // The idle connections are as old as this one and may be dead, too.
            self.pool.close_idle();
        }
    }

    async fn perform(&mut self) {
        let commands = self.commands;
        debug_assert!(
            commands.iter().map(|command| &command.key).collect::<HashSet<_>>().len()
                == commands.len(),
            "the keys of a batch are distinct"
        );
        let mut indices: Vec<usize> = (0..commands.len()).collect();
        if self.pool.sessions.watch.has_foreign_session() {
            // No handler starts any more. What one has done is still recorded.
            let is_acquire =
                |index: &mut usize| matches!(commands[*index].operation, Operation::Acquire { .. });
            let refused: Vec<_> = indices.extract_if(.., is_acquire).collect();
            self.fail(refused, &self.pool.misconfigured(SESSION_POOLING_ADVICE.into()));
            if indices.is_empty() {
                return;
            }
        }
        let Some(to_retry) = self.attempt(indices, false).await else {
            return;
        };
        // The connection broke, because the server was restarted or is now a replica. Every command
        // can be repeated, so send the unanswered ones once more over a new connection.
        self.pool.close_idle();
        let remaining = self.attempt(to_retry, true).await;
        debug_assert!(remaining.is_none(), "the second attempt answers every command");
    }

    /// Finishes the batch. Each command without an answer gets the error `timeout`.
    pub(crate) fn into_answers(self, timeout: &StoreError) -> Vec<Result<Answer, StoreError>> {
        self.answers.into_iter().map(|it| it.unwrap_or_else(|| Err(timeout.clone()))).collect()
    }

    /// Performs commands over one connection. Returns the commands that may be retried over another
    /// connection; on the second attempt there are none.
    async fn attempt(&mut self, indices: Vec<usize>, is_second: bool) -> Option<Vec<usize>> {
        // Keep half of the time for the answer. A call that got its connection too late would time
        // out and discard a good connection; left alone, that connection serves the next call.
        let wait = self.deadline.saturating_duration_since(Instant::now()) / 2;
        let lease = match timeout(wait, self.pool.lease(wait)).await {
            Ok(lease) => lease,
            Err(_) => Err(self.pool.timed_out(wait)),
        };
        let lease = match lease {
            Ok(lease) => lease,
            Err(error) => {
                self.fail(indices, &if is_second { error.possibly_sent() } else { error });
                return None;
            }
        };
        let commands = self.commands;
        let (calls, unknown) = Call::group(indices.iter().map(|&index| (index, &commands[index])));
        for index in unknown {
            let error = "unknown operation: not supported by this version of the store";
            self.fail([index], &StoreError::unavailable(error));
        }
        let watching = self.pool.sessions.watch.refresh(&lease, self.pool.address());
        let (mut results, ()) = join(self.results(&lease, calls), watching).await;
        // A row of the call is locked by another session. Retry the commands one by one, so that
        // only the command for that row waits.
        let is_lock_timeout = |(call, result): &(Call<'_>, CallResult)| {
            call.indices().nth(1).is_some() && result.as_ref().is_err_and(Failure::is_lock_timeout)
        };
        let locked: Vec<_> = results.extract_if(.., |result| is_lock_timeout(result)).collect();
        let singles = locked.iter().flat_map(|(call, _)| call.split()).collect();
        results.extend(self.results(&lease, singles).await);
        let (mut to_retry, mut has_failed) = (Vec::new(), false);
        for (call, result) in results {
            match result {
                Ok(answers) => {
                    for (index, answer) in call.indices().zip(answers) {
                        self.answers[index] = Some(Ok(answer));
                    }
                    continue;
                }
                Err(failure) if failure.is_transient() && !is_second => {
                    if self.pool.allows_log() {
                        let (address, error) = (self.pool.address(), StoreError::from(failure));
                        tracing::warn!(
                            address,
                            error = &error as &dyn Error,
                            "a call to Postgres failed; sending it once more over another \
                             connection"
                        );
                    }
                    to_retry.extend(call.indices());
                }
                // The connection is still usable.
                Err(failure) if failure.is_lock_timeout() => {
                    self.fail(call.indices(), &failure.into());
                    continue;
                }
                Err(failure) => self.fail(call.indices(), &failure.into()),
            }
            has_failed = true;
        }
        if !has_failed {
            lease.release();
        }
        Some(to_retry).filter(|to_retry| !to_retry.is_empty())
    }

    /// Pipelines the calls: sends them without waiting for answers. The server performs them in
    /// order.
    async fn results<'c>(
        &self,
        lease: &Lease,
        calls: Vec<Call<'c>>,
    ) -> Vec<(Call<'c>, CallResult)> {
        let results = join_all(calls.iter().map(|call| call.run(&**lease, self.schema))).await;
        calls.into_iter().zip(results).collect()
    }

    fn fail(&mut self, indices: impl IntoIterator<Item = usize>, error: &StoreError) {
        for index in indices {
            self.answers[index] = Some(Err(error.clone()));
        }
    }
}
