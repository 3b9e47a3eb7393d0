//! The attempt number, counted again from operations and replies alone.

use std::collections::HashMap;

use campanile_core::limits::MAX_INTERRUPTS;
use campanile_core::{FencingToken, Grant, Operation, Owner, Reply};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use crate::check::check;
use crate::simulation::{Event, Faults, histories};
use crate::step_properties::Step;

/// What an observer of operations and replies knows about a key.
#[derive(Default)]
struct Ledger {
    counted: u16,
    interrupts: u8,
    last: Option<Last>,
}

struct Last {
    grant: Grant,
    is_give_up: bool,
    has_ended: bool,
}

#[test]
fn attempt_equals_number_of_counted_grants() {
    check(200, &histories(Faults::CLOCK), |history| {
        let mut ledgers: HashMap<usize, Ledger> = HashMap::new();
        for (_, event) in history.events() {
            match event {
                Event::Expired { key } => drop(ledgers.remove(key)),
                Event::Stepped { key, step } => ledgers.entry(*key).or_default().observe(step)?,
                _ => {}
            }
        }
        Ok(())
    });
}

impl Ledger {
    fn observe(&mut self, step: &Step) -> TestCaseResult {
        match (&step.operation, &step.reply) {
            (&Operation::Acquire { owner, .. }, &Reply::Acquired { token, attempt, .. }) => {
                self.granted(token, owner, false);
                prop_assert_eq!(attempt, self.counted);
            }
            (&Operation::Acquire { owner, .. }, &Reply::Exhausted { token, attempt, .. }) => {
                self.granted(token, owner, true);
                prop_assert_eq!(attempt, self.counted);
            }
            (&Operation::Release { grant, ran }, Reply::Released) => self.released(grant, ran),
            (&Operation::Cancel { owner }, Reply::Released) => {
                let last = self.last.as_ref().filter(|last| last.grant.owner == owner);
                if let Some(grant) = last.map(|last| last.grant) {
                    self.released(grant, false);
                }
            }
            (&Operation::Complete { grant, attempt, .. }, Reply::Completed) => {
                if self.last.as_ref().is_none_or(|last| last.grant != grant) {
                    // The entry no longer existed, so the store adopted the completion.
                    let last = Last { grant, is_give_up: false, has_ended: true };
                    *self = Self { counted: attempt, interrupts: 0, last: Some(last) };
                }
                self.ended();
            }
            (_, Reply::Retrying | Reply::GivenUp) => self.ended(),
            (_, Reply::Reopened) => *self = Self::default(),
            _ => {}
        }
        Ok(())
    }

    fn granted(&mut self, token: FencingToken, owner: Owner, is_give_up: bool) {
        let grant = Grant { token, owner };
        if self.last.as_ref().is_none_or(|last| last.grant != grant) {
            self.counted += u16::from(!is_give_up);
            self.last = Some(Last { grant, is_give_up, has_ended: false });
        }
    }

    fn released(&mut self, grant: Grant, ran: bool) {
        let Some(last) = self.last.as_ref().filter(|last| last.grant == grant) else {
            return;
        };
        if !last.has_ended && !last.is_give_up && (!ran || self.interrupts < MAX_INTERRUPTS) {
            self.counted -= 1;
            self.interrupts += u8::from(ran);
        }
        self.ended();
    }

    fn ended(&mut self) {
        if let Some(last) = &mut self.last {
            last.has_ended = true;
        }
    }
}
