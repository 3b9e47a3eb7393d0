//! A client that keeps to the protocol.

use std::time::Duration;

use bytes::Bytes;
use campanile_core::{FencingToken, Fingerprint, Grant, Operation, Owner, Reply};

use super::KEYS;
use super::history::Ending;
use super::script::{Intent, Wish};

/// One process: what it does for each key, and the largest token it has seen.
pub(super) struct Client {
    floor: FencingToken,
    jobs: [Option<Job>; KEYS],
}

/// One acquisition and what comes of it.
struct Job {
    payload: u64,
    phase: Phase,
}

enum Phase {
    /// The command is sent again, or taken back, until it is answered.
    Asking(Operation),
    /// The handler may run while the deadline is ahead.
    Running { grant: Grant, attempt: u16, until: u64, acted: bool },
    /// The dead letter is due, or out.
    Burying { grant: Grant, until: u64, is_out: bool },
    /// Sent again until it is answered, also past the deadline.
    Settling(Operation),
}

/// What a client does next.
pub(super) enum Decision {
    Nothing,
    Effect(Grant),
    Letter(Grant),
    Send { operation: Operation, lets_go: Option<(Grant, Ending)> },
}

impl Client {
    /// A process that has just begun.
    pub(super) fn new() -> Self {
        Self { floor: FencingToken::ZERO, jobs: Default::default() }
    }

    pub(super) fn decide(
        &mut self,
        key: usize,
        intent: &Intent,
        max_attempts: u16,
        elapsed: u64,
        draw: impl FnOnce() -> Owner,
    ) -> Decision {
        let Some(job) = &mut self.jobs[key] else {
            let operation = Operation::Acquire {
                owner: draw(),
                ttl: Duration::from_micros(intent.ttl),
                max_attempts,
                fingerprint: Fingerprint::from_bits(intent.payload),
                floor: self.floor,
            };
            let phase = Phase::Asking(operation.clone());
            self.jobs[key] = Some(Job { payload: intent.payload, phase });
            return Decision::Send { operation, lets_go: None };
        };
        let is_late = match job.phase {
            Phase::Running { until, .. } | Phase::Burying { until, .. } => until <= elapsed,
            Phase::Asking(_) | Phase::Settling(_) => false,
        };
        let decision = job.decide(intent, is_late, max_attempts);
        if decision.is_none() {
            self.jobs[key] = None;
        }
        decision.unwrap_or(Decision::Nothing)
    }

    /// Takes an answer in; tells which grant the client now believes to hold, and until when.
    pub(super) fn hear(
        &mut self,
        key: usize,
        operation: &Operation,
        reply: Reply,
        sent_at: u64,
    ) -> Option<(Grant, u64)> {
        let job = self.jobs[key].as_mut().expect("only who sent something is answered");
        if let Reply::Acquired { token, .. } | Reply::Exhausted { token, .. } = reply {
            self.floor = self.floor.max(token);
        }
        let held = job.hear(operation, reply, sent_at);
        if held.is_none() {
            self.jobs[key] = None;
        }
        held
    }
}

impl Job {
    /// What to do next, or `None` if the lock is lost and there is nothing to tell.
    fn decide(&mut self, intent: &Intent, is_late: bool, max_attempts: u16) -> Option<Decision> {
        let wish = intent.wish;
        match &mut self.phase {
            Phase::Asking(Operation::Acquire { owner, .. }) if matches!(wish, Wish::GiveUp) => {
                let operation = Operation::Cancel { owner: *owner };
                self.phase = Phase::Asking(operation.clone());
                Some(Decision::Send { operation, lets_go: None })
            }
            Phase::Asking(operation) | Phase::Settling(operation) => {
                Some(Decision::Send { operation: operation.clone(), lets_go: None })
            }
            &mut Phase::Running { grant, attempt, ref mut acted, .. } => match wish {
                // The result of a handler that went on is sent all the same: the store decides.
                Wish::Succeed if *acted => {
                    let operation = self.complete(grant, attempt);
                    Some(self.settle(grant, Ending::ForGood, operation))
                }
                _ if is_late => None,
                Wish::Renew => Some(renew(grant, intent.ttl)),
                Wish::GiveUp => {
                    let operation = Operation::Release { grant, ran: *acted };
                    Some(self.settle(grant, Ending::ForNow, operation))
                }
                Wish::Fail if *acted => Some(self.fail(grant, attempt >= max_attempts, intent)),
                _ if *acted => Some(Decision::Nothing),
                _ => {
                    *acted = true;
                    Some(Decision::Effect(grant))
                }
            },
            &mut Phase::Burying { grant, ref mut is_out, .. } => match wish {
                Wish::Renew if !is_late => Some(renew(grant, intent.ttl)),
                _ if *is_out => {
                    let reason = reason(self.payload);
                    let operation = Operation::Reject { grant, reason };
                    Some(self.settle(grant, Ending::ForGood, operation))
                }
                _ if is_late => None,
                Wish::GiveUp => {
                    let operation = Operation::Release { grant, ran: false };
                    Some(self.settle(grant, Ending::ForNow, operation))
                }
                Wish::Fail => {
                    let delay = Duration::from_micros(intent.delay);
                    let operation = Operation::Fail { grant, delay, last: true, error: "".into() };
                    Some(self.settle(grant, Ending::ForNow, operation))
                }
                _ => {
                    *is_out = true;
                    Some(Decision::Letter(grant))
                }
            },
        }
    }

    /// The handler failed. With no attempt left, or for good, the dead letter is published under its
    /// own lock, or by the next one if the topic does not answer.
    fn fail(&mut self, grant: Grant, is_last: bool, intent: &Intent) -> Decision {
        if (is_last || intent.last)
            && intent.delay == 0
            && let Phase::Running { until, .. } = self.phase
        {
            self.phase = Phase::Burying { grant, until, is_out: true };
            return Decision::Letter(grant);
        }
        let delay = Duration::from_micros(intent.delay);
        let error = reason(self.payload);
        let operation = Operation::Fail { grant, delay, last: intent.last, error };
        self.settle(grant, Ending::ForNow, operation)
    }

    fn settle(&mut self, grant: Grant, how: Ending, operation: Operation) -> Decision {
        self.phase = Phase::Settling(operation.clone());
        Decision::Send { operation, lets_go: Some((grant, how)) }
    }

    fn complete(&self, grant: Grant, attempt: u16) -> Operation {
        Operation::Complete {
            grant,
            attempt,
            fingerprint: Fingerprint::from_bits(self.payload),
            reply: Some(Bytes::from(reason(self.payload).into_boxed_bytes())),
        }
    }

    fn hear(&mut self, sent: &Operation, reply: Reply, sent_at: u64) -> Option<(Grant, u64)> {
        let until = |ttl: Duration| sent_at + ttl.as_micros() as u64;
        match (sent, reply) {
            (&Operation::Acquire { owner, ttl, .. }, Reply::Acquired { token, attempt }) => {
                let (grant, until) = (Grant { token, owner }, until(ttl));
                self.phase = Phase::Running { grant, attempt, until, acted: false };
                Some((grant, until))
            }
            (&Operation::Acquire { owner, ttl, .. }, Reply::Exhausted { token, .. }) => {
                let (grant, until) = (Grant { token, owner }, until(ttl));
                self.phase = Phase::Burying { grant, until, is_out: false };
                Some((grant, until))
            }
            (&Operation::Renew { grant, ttl }, Reply::Renewed) => {
                let (Phase::Running { until: held, .. } | Phase::Burying { until: held, .. }) =
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
    Decision::Send { operation, lets_go: None }
}

/// Reply, error and reason all say which payload they are about.
fn reason(payload: u64) -> Box<str> {
    payload.to_string().into()
}
