//! A client that follows the protocol.

use std::time::Duration;

use bytes::Bytes;
use campanile_core::{FencingToken, Fingerprint, Grant, Operation, Owner, Reply};

use super::KEYS;
use super::history::Ending;
use super::script::{Goal, Intent};

/// A process: its job for each key, and the largest token it has seen.
pub(super) struct Client {
    floor: FencingToken,
    jobs: [Option<Job>; KEYS],
}

/// One acquisition of a key and the run that follows.
struct Job {
    payload: u64,
    phase: Phase,
}

enum Phase {
    /// The acquire is sent again, or cancelled, until it is answered.
    Acquiring(Operation),
    /// The handler may run until the deadline.
    Running { grant: Grant, attempt: u16, until: u64, had_effect: bool },
    /// The dead letter is due or published.
    GivingUp { grant: Grant, until: u64, is_published: bool },
    /// The command is sent again until it is answered, even after the deadline.
    Settling(Operation),
}

/// What a client does next.
pub(super) enum Decision {
    Nothing,
    Effect(Grant),
    DeadLetter(Grant),
    Send { operation: Operation, ending: Option<(Grant, Ending)> },
}

impl Client {
    /// A process that has just started.
    pub(super) fn new() -> Self {
        Self { floor: FencingToken::ZERO, jobs: Default::default() }
    }

    pub(super) fn decide(
        &mut self,
        key: usize,
        intent: &Intent,
        max_attempts: u16,
        elapsed: u64,
        new_owner: impl FnOnce() -> Owner,
    ) -> Decision {
        let Some(job) = &mut self.jobs[key] else {
            let operation = Operation::Acquire {
                owner: new_owner(),
                ttl: Duration::from_micros(intent.ttl),
                max_attempts,
                fingerprint: Fingerprint::from_bits(intent.payload),
                floor: self.floor,
                details: None,
            };
            let phase = Phase::Acquiring(operation.clone());
            self.jobs[key] = Some(Job { payload: intent.payload, phase });
            return Decision::Send { operation, ending: None };
        };
        let is_expired = match job.phase {
            Phase::Running { until, .. } | Phase::GivingUp { until, .. } => until <= elapsed,
            Phase::Acquiring(_) | Phase::Settling(_) => false,
        };
        let decision = job.decide(intent, is_expired, max_attempts);
        if decision.is_none() {
            self.jobs[key] = None;
        }
        decision.unwrap_or(Decision::Nothing)
    }

    /// Handles a reply, and finds the grant that the client now believes it holds, and until when.
    pub(super) fn handle_reply(
        &mut self,
        key: usize,
        operation: &Operation,
        reply: Reply,
        sent_at: u64,
    ) -> Option<(Grant, u64)> {
        let job = self.jobs[key].as_mut().expect("only a client with a job gets a reply");
        if let Reply::Acquired { token, .. } | Reply::Exhausted { token, .. } = reply {
            self.floor = self.floor.max(token);
        }
        let held = job.handle_reply(operation, reply, sent_at);
        if held.is_none() {
            self.jobs[key] = None;
        }
        held
    }
}

impl Job {
    /// Decides what to do next. `None` means that the lock is lost and there is nothing to report.
    fn decide(&mut self, intent: &Intent, is_expired: bool, max_attempts: u16) -> Option<Decision> {
        let goal = intent.goal;
        match &mut self.phase {
            Phase::Acquiring(Operation::Acquire { owner, .. }) if matches!(goal, Goal::GiveUp) => {
                let operation = Operation::Cancel { owner: *owner };
                self.phase = Phase::Acquiring(operation.clone());
                Some(Decision::Send { operation, ending: None })
            }
            Phase::Acquiring(operation) | Phase::Settling(operation) => {
                Some(Decision::Send { operation: operation.clone(), ending: None })
            }
            &mut Phase::Running { grant, attempt, ref mut had_effect, .. } => match goal {
                // The result of a handler that overran its deadline is sent anyway: the store
                // decides.
                Goal::Succeed if *had_effect => {
                    let operation = self.complete(grant, attempt);
                    Some(self.settle(grant, Ending::Final, operation))
                }
                _ if is_expired => None,
                Goal::Renew => Some(renew(grant, intent.ttl)),
                Goal::GiveUp => {
                    let operation = Operation::Release { grant, ran: *had_effect };
                    Some(self.settle(grant, Ending::Retryable, operation))
                }
                Goal::Fail if *had_effect => {
                    Some(self.fail(grant, attempt >= max_attempts, intent))
                }
                _ if *had_effect => Some(Decision::Nothing),
                _ => {
                    *had_effect = true;
                    Some(Decision::Effect(grant))
                }
            },
            &mut Phase::GivingUp { grant, ref mut is_published, .. } => match goal {
                Goal::Renew if !is_expired => Some(renew(grant, intent.ttl)),
                _ if *is_published => {
                    let reason = payload_text(self.payload);
                    let operation = Operation::GiveUp { grant, reason };
                    Some(self.settle(grant, Ending::Final, operation))
                }
                _ if is_expired => None,
                Goal::GiveUp => {
                    let operation = Operation::Release { grant, ran: false };
                    Some(self.settle(grant, Ending::Retryable, operation))
                }
                Goal::Fail => {
                    let delay = Duration::from_micros(intent.delay);
                    let operation = Operation::Fail { grant, delay, last: true, error: "".into() };
                    Some(self.settle(grant, Ending::Retryable, operation))
                }
                _ => {
                    *is_published = true;
                    Some(Decision::DeadLetter(grant))
                }
            },
        }
    }

    /// Ends a failed run. After the last attempt or a permanent failure, the dead letter is
    /// published under the lock of this run, or under the next one if the topic is unavailable.
    fn fail(&mut self, grant: Grant, is_last: bool, intent: &Intent) -> Decision {
        if (is_last || intent.last)
            && intent.delay == 0
            && let Phase::Running { until, .. } = self.phase
        {
            self.phase = Phase::GivingUp { grant, until, is_published: true };
            return Decision::DeadLetter(grant);
        }
        let delay = Duration::from_micros(intent.delay);
        let error = payload_text(self.payload);
        let operation = Operation::Fail { grant, delay, last: intent.last, error };
        self.settle(grant, Ending::Retryable, operation)
    }

    fn settle(&mut self, grant: Grant, ending: Ending, operation: Operation) -> Decision {
        self.phase = Phase::Settling(operation.clone());
        Decision::Send { operation, ending: Some((grant, ending)) }
    }

    fn complete(&self, grant: Grant, attempt: u16) -> Operation {
        Operation::Complete {
            grant,
            attempt,
            fingerprint: Fingerprint::from_bits(self.payload),
            reply: Some(Bytes::from(payload_text(self.payload).into_boxed_bytes())),
            details: None,
        }
    }

    fn handle_reply(
        &mut self,
        sent: &Operation,
        reply: Reply,
        sent_at: u64,
    ) -> Option<(Grant, u64)> {
        let until = |ttl: Duration| sent_at + ttl.as_micros() as u64;
        match (sent, reply) {
            (&Operation::Acquire { owner, ttl, .. }, Reply::Acquired { token, attempt, .. }) => {
                let (grant, until) = (Grant { token, owner }, until(ttl));
                self.phase = Phase::Running { grant, attempt, until, had_effect: false };
                Some((grant, until))
            }
            (&Operation::Acquire { owner, ttl, .. }, Reply::Exhausted { token, .. }) => {
                let (grant, until) = (Grant { token, owner }, until(ttl));
                self.phase = Phase::GivingUp { grant, until, is_published: false };
                Some((grant, until))
            }
            (&Operation::Renew { grant, ttl }, Reply::Renewed) => {
                let (Phase::Running { until: held, .. } | Phase::GivingUp { until: held, .. }) =
                    &mut self.phase
                else {
                    unreachable!("only a held lock is renewed")
                };
                *held = (*held).max(until(ttl));
                Some((grant, *held))
            }
            _ => None,
        }
    }
}

fn renew(grant: Grant, ttl: u64) -> Decision {
    let operation = Operation::Renew { grant, ttl: Duration::from_micros(ttl) };
    Decision::Send { operation, ending: None }
}

/// The text of a reply, error or reason, which names its payload.
fn payload_text(payload: u64) -> Box<str> {
    payload.to_string().into()
}
