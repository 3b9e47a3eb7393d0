//! A call of one database function for several keys.

use std::time::{Duration, SystemTime};

use campanile_core::limits::{MAX_BACKOFF, MAX_LOCK_TTL};
use campanile_core::{
    Answer, Command, Details, Entry, FencingToken, Grant, Namespace, Operation, Reply, reply,
};
use campanile_sql::VERSION;
use deadpool_postgres::GenericClient;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::failure::Failure;
use crate::response::{Found, Response};

/// The commands of a batch that one call performs. Their keys are distinct.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    namespace: &'a Namespace,
    parameters: Parameters,
    retention: i64,
    members: Vec<(usize, &'a Command)>,
}

/// The parameters that all commands of a call share, besides the namespace. Durations are in µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parameters {
    Acquire { ttl: i64, max_attempts: i32 },
    Renew { ttl: i64 },
    Complete,
    Fail,
    Release { ran: bool },
    Cancel,
    GiveUp,
    RecordStep,
    Redrive { force: bool },
}

/// The arguments of a function, in the order of its parameters.
type Arguments<'a> = Vec<Box<dyn ToSql + Send + Sync + 'a>>;

/// A version of the schema, and the statements that call its functions. Each statement gets the
/// arguments of this version's function.
#[derive(Clone, Copy, Debug)]
pub struct Schema {
    /// The version that the database must have when the store connects.
    pub version: i32,
    /// Calls `acquire`.
    pub acquire: &'static str,
    /// Calls `renew`.
    pub renew: &'static str,
    /// Calls `complete`.
    pub complete: &'static str,
    /// Calls `adopt`.
    pub adopt: &'static str,
    /// Calls `fail`.
    pub fail: &'static str,
    /// Calls `release`.
    pub release: &'static str,
    /// Calls `cancel`.
    pub cancel: &'static str,
    /// Calls `give_up`.
    pub give_up: &'static str,
    /// Calls `record_step`.
    pub record_step: &'static str,
    /// Calls `redrive`.
    pub redrive: &'static str,
}

impl Schema {
    /// The version that this library requires.
    pub(crate) const CURRENT: Self = Self {
        version: VERSION,
        acquire: "SELECT (answer).*, details, steps FROM campanile.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        renew: "SELECT * FROM campanile.renew($1, $2, $3, $4, $5, $6)",
        complete: "SELECT * FROM campanile.complete($1, $2, $3, $4, $5, $6, $7)",
        adopt: "SELECT * FROM campanile.adopt($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        fail: "SELECT * FROM campanile.fail($1, $2, $3, $4, $5, $6, $7, $8)",
        release: "SELECT * FROM campanile.release($1, $2, $3, $4, $5, $6)",
        cancel: "SELECT * FROM campanile.cancel($1, $2, $3, $4)",
        give_up: "SELECT * FROM campanile.give_up($1, $2, $3, $4, $5, $6)",
        record_step: "SELECT (answer).*, steps FROM campanile.record_step($1, $2, $3, $4, $5, $6, $7)",
        redrive: "SELECT * FROM campanile.redrive($1, $2, $3, $4, $5)",
    };
}

impl<'a> Call<'a> {
    /// Groups commands, each with its index in the batch, by their shared parameters. Also returns
    /// the indices of commands with an operation that this version does not know.
    pub(crate) fn group(
        commands: impl Iterator<Item = (usize, &'a Command)>,
    ) -> (Vec<Self>, Vec<usize>) {
        let (mut calls, mut unknown) = (Vec::<Self>::new(), Vec::new());
        for (index, command) in commands {
            let Some((parameters, retention)) = parameters(command) else {
                unknown.push(index);
                continue;
            };
            let namespace = command.key.namespace();
            let is_same = |call: &&mut Self| {
                call.parameters == parameters
                    && call.retention == retention
                    && call.namespace == namespace
            };
            match calls.iter_mut().find(is_same) {
                Some(call) => call.members.push((index, command)),
                None => {
                    let members = vec![(index, command)];
                    calls.push(Self { namespace, parameters, retention, members });
                }
            }
        }
        (calls, unknown)
    }

    /// The commands' indices in the batch.
    pub(crate) fn indices(&self) -> impl Iterator<Item = usize> {
        self.members.iter().map(|(index, _)| *index)
    }

    /// Splits the call into one call for each command.
    pub(crate) fn split(&self) -> impl Iterator<Item = Self> {
        self.members.iter().map(|member| Self { members: vec![*member], ..*self })
    }

    /// Performs the commands. Their answers are in the same order. Over a connection with an open
    /// transaction, the call is part of that transaction.
    ///
    /// # Errors
    /// The error of the server or of the connection. The call may have been performed nevertheless.
    pub(crate) async fn run<C: GenericClient>(
        &self,
        client: &C,
        schema: &Schema,
    ) -> Result<Vec<Answer>, Failure> {
        let statement = self.parameters.statement(schema);
        let rows = execute(client, statement, &self.arguments()).await?;
        let response = Response::read(&rows, self.members.len())?;
        let mut answers = self.answers(&response);
        if self.parameters == Parameters::Complete {
            let is_absent =
                |position: &usize| matches!(response.get(*position), Some((_, Found::Absent)));
            let absent: Vec<usize> = (0..self.members.len()).filter(is_absent).collect();
            if !absent.is_empty() {
                let members = absent.iter().map(|&position| self.members[position]).collect();
                let adopted = Self { members, ..*self };
                let rows = execute(client, schema.adopt, &adopted.adopt_arguments()).await?;
                let response = Response::read(&rows, adopted.members.len())?;
                for (position, answer) in absent.into_iter().zip(adopted.answers(&response)) {
                    answers[position] = answer;
                }
            }
        }
        Ok(answers)
    }

    /// Derives the replies from the entries as they are after the call, with the function that
    /// `step` uses, so that an answer always matches the stored entry.
    fn answers(&self, response: &Response) -> Vec<Answer> {
        let answer = |(position, (_, command)): (usize, &(usize, &Command))| {
            let operation = &command.operation;
            let (now, reply) = match response.get(position) {
                None => (response.now(), ordinary_reply(operation, response.now())),
                Some((now, Found::Absent)) => (*now, reply(None, operation, *now)),
                Some((now, Found::Entry(entry))) => (*now, reply(Some(entry), operation, *now)),
                Some((now, Found::Unreadable(_))) => (*now, Reply::Corrupt),
            };
            Answer::new(now, reply)
        };
        self.members.iter().enumerate().map(answer).collect()
    }

    fn arguments(&self) -> Arguments<'a> {
        let mut arguments = self.key_arguments();
        if !matches!(self.parameters, Parameters::Acquire { .. } | Parameters::Cancel) {
            arguments.push(self.column(token));
        }
        if !matches!(self.parameters, Parameters::Redrive { .. }) {
            arguments.push(self.column(owner));
        }
        match self.parameters {
            Parameters::Acquire { ttl, max_attempts } => {
                arguments.extend([self.column(fingerprint), self.column(floor)]);
                arguments.push(self.column(details));
                arguments.push(Box::new(ttl));
                arguments.push(Box::new(max_attempts));
            }
            Parameters::Renew { ttl } => arguments.push(Box::new(ttl)),
            Parameters::Complete => {
                arguments.extend([self.column(completion), self.column(details)]);
            }
            Parameters::Fail => {
                arguments.extend([self.column(delay), self.column(last), self.column(error_text)]);
            }
            Parameters::Release { ran } => arguments.push(Box::new(ran)),
            Parameters::Cancel => {}
            Parameters::GiveUp => arguments.push(self.column(error_text)),
            Parameters::RecordStep => {
                arguments.extend([self.column(step_name), self.column(step_result)]);
            }
            Parameters::Redrive { force } => arguments.push(Box::new(force)),
        }
        arguments.push(Box::new(self.retention));
        arguments
    }

    /// Builds the arguments of `adopt`, for completions without an entry.
    fn adopt_arguments(&self) -> Arguments<'a> {
        let mut arguments = self.key_arguments();
        arguments.extend([self.column(token), self.column(owner), self.column(attempt)]);
        arguments.extend([self.column(fingerprint), self.column(completion)]);
        arguments.push(self.column(details));
        arguments.push(Box::new(self.retention));
        arguments
    }

    /// Builds the first arguments of every function: the namespace and the keys.
    fn key_arguments(&self) -> Arguments<'a> {
        let digests: Vec<&[u8]> =
            self.members.iter().map(|(_, command)| &command.key.digest()[..]).collect();
        vec![Box::new(self.namespace.as_str()), Box::new(digests)]
    }

    /// Builds an array argument with one item for each key.
    fn column<T: ToSql + Send + Sync + 'a>(
        &self,
        value: impl Fn(&'a Operation) -> Option<T>,
    ) -> Box<dyn ToSql + Send + Sync + 'a> {
        let items: Vec<Option<T>> =
            self.members.iter().map(|(_, command)| value(&command.operation)).collect();
        Box::new(items)
    }
}

impl Parameters {
    /// The statement that calls the operation's function.
    const fn statement(self, schema: &Schema) -> &'static str {
        match self {
            Self::Acquire { .. } => schema.acquire,
            Self::Renew { .. } => schema.renew,
            Self::Complete => schema.complete,
            Self::Fail => schema.fail,
            Self::Release { .. } => schema.release,
            Self::Cancel => schema.cancel,
            Self::GiveUp => schema.give_up,
            Self::RecordStep => schema.record_step,
            Self::Redrive { .. } => schema.redrive,
        }
    }
}

async fn execute<C: GenericClient>(
    client: &C,
    statement: &str,
    arguments: &Arguments<'_>,
) -> Result<Vec<Row>, Failure> {
    let statement = client.prepare_cached(statement).await?;
    let arguments: Vec<&(dyn ToSql + Sync)> =
        arguments.iter().map(|argument| &**argument as _).collect();
    Ok(client.query(&statement, &arguments).await?)
}

/// Splits a command into the parameters that it can share with others, and its retention in µs;
/// `None` for an operation that this version does not know.
fn parameters(command: &Command) -> Option<(Parameters, i64)> {
    let retention = &command.retention;
    let (parameters, duration) = match command.operation {
        Operation::Acquire { ttl, max_attempts, .. } => {
            let ttl = micros(ttl.min(MAX_LOCK_TTL));
            (Parameters::Acquire { ttl, max_attempts: max_attempts.into() }, retention.attempts)
        }
        Operation::Renew { ttl, .. } => {
            (Parameters::Renew { ttl: micros(ttl.min(MAX_LOCK_TTL)) }, retention.attempts)
        }
        Operation::Complete { .. } => (Parameters::Complete, retention.completed),
        Operation::Fail { .. } => (Parameters::Fail, retention.attempts),
        Operation::Release { ran, .. } => (Parameters::Release { ran }, retention.attempts),
        Operation::Cancel { .. } => (Parameters::Cancel, retention.attempts),
        Operation::GiveUp { .. } => (Parameters::GiveUp, retention.failed),
        Operation::RecordStep { .. } => (Parameters::RecordStep, retention.attempts),
        Operation::Redrive { force, .. } => (Parameters::Redrive { force }, retention.attempts),
        _ => return None,
    };
    Some((parameters, retention_micros(duration)))
}

/// Limits a retention and converts it into µs.
pub(crate) fn retention_micros(retention: Duration) -> i64 {
    micros(retention.min(MAX_RETENTION))
}

/// A century: far longer than any useful retention, and can be added to a time without overflow.
const MAX_RETENTION: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

fn micros(bounded: Duration) -> i64 {
    i64::try_from(bounded.as_micros()).expect("a century in microseconds fits into an i64")
}

/// The reply to an operation that had its ordinary outcome.
fn ordinary_reply(operation: &Operation, now: SystemTime) -> Reply {
    match operation {
        Operation::Acquire { floor, .. } => {
            let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let clock = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
            match FencingToken::new(clock.max(floor.get() + 1)) {
                Some(token) => Reply::Acquired { token, attempt: 1, steps: None },
                None => Reply::Corrupt,
            }
        }
        Operation::Renew { .. } => Reply::Renewed,
        Operation::Complete { .. } => Reply::Completed,
        Operation::Fail { .. } => Reply::Retrying,
        Operation::Release { .. } | Operation::Cancel { .. } => Reply::Released,
        Operation::GiveUp { .. } => Reply::GivenUp,
        Operation::RecordStep { .. } => Reply::StepRecorded,
        _ => Reply::Reopened,
    }
}

fn grant(operation: &Operation) -> Option<Grant> {
    match operation {
        Operation::Renew { grant, .. }
        | Operation::Complete { grant, .. }
        | Operation::Fail { grant, .. }
        | Operation::Release { grant, .. }
        | Operation::RecordStep { grant, .. }
        | Operation::GiveUp { grant, .. } => Some(*grant),
        _ => None,
    }
}

fn token(operation: &Operation) -> Option<i64> {
    let token = match operation {
        Operation::Redrive { token, .. } => Some(*token),
        other => grant(other).map(|grant| grant.token),
    };
    token.map(|token| token.get().cast_signed())
}

fn owner(operation: &Operation) -> Option<i64> {
    let owner = match operation {
        Operation::Acquire { owner, .. } | Operation::Cancel { owner } => Some(*owner),
        other => grant(other).map(|grant| grant.owner),
    };
    owner.map(|owner| owner.get().cast_signed())
}

fn fingerprint(operation: &Operation) -> Option<i64> {
    match operation {
        Operation::Acquire { fingerprint, .. } | Operation::Complete { fingerprint, .. } => {
            fingerprint.map(|fingerprint| fingerprint.to_bits().cast_signed())
        }
        _ => None,
    }
}

fn floor(operation: &Operation) -> Option<i64> {
    match operation {
        Operation::Acquire { floor, .. } => Some(floor.get().cast_signed()),
        _ => None,
    }
}

fn attempt(operation: &Operation) -> Option<i32> {
    match operation {
        Operation::Complete { attempt, .. } => Some((*attempt).into()),
        _ => None,
    }
}

fn completion(operation: &Operation) -> Option<&[u8]> {
    match operation {
        Operation::Complete { reply, .. } => reply.as_deref(),
        _ => None,
    }
}

fn details(operation: &Operation) -> Option<&[u8]> {
    match operation {
        Operation::Acquire { details, .. } | Operation::Complete { details, .. } => {
            details.as_ref().map(Details::as_bytes)
        }
        _ => None,
    }
}

fn step_name(operation: &Operation) -> Option<&[u8]> {
    match operation {
        Operation::RecordStep { name, .. } => Some(name.as_bytes()),
        _ => None,
    }
}

fn step_result(operation: &Operation) -> Option<&[u8]> {
    match operation {
        Operation::RecordStep { result, .. } => Some(result),
        _ => None,
    }
}

fn delay(operation: &Operation) -> Option<i64> {
    match operation {
        Operation::Fail { delay, .. } => Some(micros((*delay).min(MAX_BACKOFF))),
        _ => None,
    }
}

fn last(operation: &Operation) -> Option<bool> {
    match operation {
        Operation::Fail { last, .. } => Some(*last),
        _ => None,
    }
}

/// The part of an error's text that is stored; `None` if the text is empty.
fn error_text(operation: &Operation) -> Option<&[u8]> {
    match operation {
        Operation::Fail { error: text, .. } | Operation::GiveUp { reason: text, .. } => {
            Some(Entry::kept_error(text).as_bytes()).filter(|text| !text.is_empty())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use campanile_core::{IdempotencyKey, Owner, Retention, StoreKey};

    use super::*;

    #[test]
    fn commands_with_the_same_parameters_share_a_call() {
        let command = |space: &str, name: usize, ttl, retention| Command {
            key: StoreKey::new(
                space.try_into().unwrap(),
                &IdempotencyKey::new(name.to_string()).unwrap(),
            ),
            operation: Operation::Renew {
                grant: Grant { token: FencingToken::ZERO, owner: Owner::new(7).unwrap() },
                ttl: Duration::from_secs(ttl),
            },
            retention: Retention { attempts: Duration::from_secs(retention), ..Default::default() },
        };
        let commands = [
            ("payments", 9, 90),
            ("refunds", 9, 90),
            ("payments", 9, 90),
            ("payments", 8, 90),
            ("payments", 9, 80),
            ("refunds", 9, 90),
        ];
        let commands = commands.iter().zip(0..);
        let commands: Vec<_> = commands
            .map(|(&(space, ttl, retention), name)| command(space, name, ttl, retention))
            .collect();
        let (calls, unknown) = Call::group(commands.iter().enumerate());
        let grouped: Vec<Vec<_>> = calls.iter().map(|call| call.indices().collect()).collect();
        assert_eq!(grouped, [&[0, 2][..], &[1, 5], &[3], &[4]]);
        assert!(unknown.is_empty());
    }
}
