//! A poison record, which every run fails or crashes on, runs out of attempts.

use std::time::Duration;

use campanile_core::limits::MAX_INTERRUPTS;
use campanile_core::{Entry, FencingToken, Grant, Operation, Reply, step};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::check::check;
use crate::draft::{HOUR, NOW, SECOND, owner, time};

/// How an unsuccessful run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum RunEnd {
    /// The process crashes and the lock expires.
    Crash,
    Fail,
    /// A rebalance or a shutdown after the handler has started.
    Interrupt,
    /// A rebalance or a shutdown before the handler has started, or overload.
    Shed,
    /// The reply to the acquire was lost, and the client cancels the acquire.
    Cancel,
}

impl RunEnd {
    fn handler_ran(self) -> bool {
        matches!(self, Self::Crash | Self::Fail | Self::Interrupt)
    }
}

fn run_ends() -> impl Strategy<Value = Vec<RunEnd>> {
    let any = || {
        prop_oneof![
            2 => Just(RunEnd::Crash),
            2 => Just(RunEnd::Fail),
            4 => Just(RunEnd::Interrupt),
            1 => Just(RunEnd::Shed),
            1 => Just(RunEnd::Cancel)
        ]
    };
    vec(any(), 0..40)
}

/// A key that is acquired again each time it is due and never completes.
struct Poison {
    entry: Option<Entry>,
    now: u64,
    max_attempts: u16,
    acquired: u64,
}

impl Poison {
    fn new(max_attempts: u16) -> Self {
        Self { entry: None, now: NOW, max_attempts, acquired: 0 }
    }

    fn acquire(&mut self) -> (Grant, Reply) {
        self.acquired += 1;
        let owner = owner(self.acquired);
        let reply = self.apply(Operation::Acquire {
            owner,
            ttl: Duration::from_secs(30),
            max_attempts: self.max_attempts,
            fingerprint: None,
            floor: FencingToken::ZERO,
            details: None,
        });
        let (Reply::Acquired { token, .. } | Reply::Exhausted { token, .. }) = reply else {
            panic!("the key is due, but the reply is {reply:?}")
        };
        (Grant { token, owner }, reply)
    }

    fn end(&mut self, grant: Grant, end: RunEnd) {
        let delay = Duration::from_secs(5);
        let operation = match end {
            RunEnd::Crash => None,
            RunEnd::Fail => Some(Operation::Fail { grant, delay, last: false, error: "no".into() }),
            RunEnd::Interrupt => Some(Operation::Release { grant, ran: true }),
            RunEnd::Shed => Some(Operation::Release { grant, ran: false }),
            RunEnd::Cancel => Some(Operation::Cancel { owner: grant.owner }),
        };
        if let Some(operation) = operation {
            self.apply(operation);
        }
        self.now += 60 * SECOND; // longer than every lock and backoff here
    }

    fn apply(&mut self, operation: Operation) -> Reply {
        let (entry, reply) = step(self.entry.take(), &operation, time(self.now));
        self.entry = entry;
        reply
    }
}

#[test]
fn poison_key_runs_out_of_attempts() {
    check(500, &(1..=5_u16, run_ends()), |(max_attempts, run_ends)| {
        let mut poison = Poison::new(max_attempts);
        let (mut runs, mut attempts, mut interrupts) = (0, 0, 0);
        for end in run_ends {
            let (grant, reply) = poison.acquire();
            if attempts == max_attempts {
                prop_assert!(matches!(reply, Reply::Exhausted { .. }), "{reply:?}");
            } else {
                attempts += 1;
                prop_assert_eq!(
                    reply,
                    Reply::Acquired { token: grant.token, attempt: attempts, steps: None }
                );
                runs += u16::from(end.handler_ran());
                let is_handed_back = match end {
                    RunEnd::Crash | RunEnd::Fail => false,
                    RunEnd::Interrupt => interrupts < MAX_INTERRUPTS,
                    RunEnd::Shed | RunEnd::Cancel => true,
                };
                attempts -= u16::from(is_handed_back);
                interrupts += u8::from(is_handed_back && end.handler_ran());
            }
            poison.end(grant, end);
        }
        prop_assert!(runs <= max_attempts + u16::from(MAX_INTERRUPTS));
        Ok(())
    });
}

#[test]
fn release_uncounts_attempt_a_bounded_number_of_times() {
    let mut poison = Poison::new(2);
    let mut runs = 0;
    while let (grant, Reply::Acquired { .. }) = poison.acquire() {
        runs += 1;
        assert!(runs <= 100, "an interrupted handler runs forever");
        poison.end(grant, RunEnd::Interrupt);
    }
    assert_eq!(runs, 2 + u32::from(MAX_INTERRUPTS));
}

#[test]
fn key_that_never_ran_is_never_exhausted() {
    let mut poison = Poison::new(1);
    for _ in 0..1000 {
        let (grant, reply) = poison.acquire();
        assert_eq!(reply, Reply::Acquired { token: grant.token, attempt: 1, steps: None });
        poison.end(grant, RunEnd::Shed);
    }
}

/// Every expired give-up lock is counted, so that it is noticed. A give-up lock that was settled is
/// not counted: nothing was wrong with the record.
#[test]
fn crashed_give_up_is_counted_and_settled_give_up_is_not() {
    check(
        100,
        &vec(prop_oneof![Just(RunEnd::Crash), Just(RunEnd::Fail), Just(RunEnd::Shed)], 1..20),
        |run_ends| {
            let mut poison = Poison::new(1);
            let (grant, _) = poison.acquire();
            poison.end(grant, RunEnd::Crash);
            let mut crashes = 0;
            for end in run_ends {
                let (grant, reply) = poison.acquire();
                let is_counted = matches!(
                    reply,
                    Reply::Exhausted { attempt: 1, give_ups, .. } if give_ups == crashes + 1
                );
                prop_assert!(is_counted, "after {crashes} crashes: {reply:?}");
                crashes += u8::from(end == RunEnd::Crash);
                poison.end(grant, end);
            }
            Ok(())
        },
    );
}

/// A failure that is repeated an hour later must not postpone the next attempt again.
#[test]
fn repeated_failure_does_not_postpone_next_attempt() {
    let mut poison = Poison::new(3);
    let (grant, _) = poison.acquire();
    poison.end(grant, RunEnd::Fail);
    poison.now += HOUR;
    poison.end(grant, RunEnd::Fail);
    poison.now -= 60 * SECOND;
    let (_, reply) = poison.acquire();
    assert!(matches!(reply, Reply::Acquired { attempt: 2, .. }), "{reply:?}");
}
