//! Runs the function under test, once for each distinct combination of entry, command and time.

use campanile_core::Reply;
use rustc_hash::FxHashMap;

use crate::compact::{Calendar, Command, Slot};
use crate::rules::{Rule, STEP_RULES, StepFn};
use crate::step::Step;

/// The result of a command on an entry.
#[derive(Debug)]
pub(crate) struct Transition {
    pub(crate) after: Slot,
    pub(crate) reply: Reply,
    pub(crate) is_new_grant: bool,
    pub(crate) broken: Option<&'static Rule>,
}

/// `step` is pure, so its results and the rules about them are computed once and kept.
pub(crate) struct Stepper {
    run: StepFn,
    pub(crate) calendar: Calendar,
    pub(crate) max_attempts: u16,
    /// Whether the rules about single steps are checked, and not only those about histories.
    checks_steps: bool,
    known: FxHashMap<(Slot, Command, i16), u32>,
    transitions: Vec<Transition>,
    /// How many steps each rule applied to.
    pub(crate) applied: Vec<u64>,
}

impl Stepper {
    pub(crate) fn new(
        run: StepFn,
        calendar: Calendar,
        max_attempts: u16,
        checks_steps: bool,
    ) -> Self {
        Self {
            run,
            calendar,
            max_attempts,
            checks_steps,
            known: FxHashMap::default(),
            transitions: Vec::new(),
            applied: vec![0; STEP_RULES.len()],
        }
    }

    /// The number of distinct steps so far.
    pub(crate) fn steps(&self) -> usize {
        self.transitions.len()
    }

    /// Applies a command when the store's clock is at this tick.
    pub(crate) fn step(&mut self, slot: Slot, command: Command, tick: i16) -> &Transition {
        let key = (slot, command, tick);
        let index = match self.known.get(&key) {
            Some(&index) => index,
            None => {
                let transition = self.run(slot, command, tick);
                let index = u32::try_from(self.transitions.len()).expect("fewer than 2^32 steps");
                self.transitions.push(transition);
                self.known.insert(key, index);
                index
            }
        };
        &self.transitions[index as usize]
    }

    fn run(&mut self, slot: Slot, command: Command, tick: i16) -> Transition {
        let operation = command.operation(self.calendar, self.max_attempts);
        let now = self.calendar.time(tick);
        let step = Step::run(self.run, slot.entry(self.calendar), operation, now);
        let mut broken = None;
        if self.checks_steps {
            for (rule, applied) in STEP_RULES.iter().zip(&mut self.applied) {
                let Some(is_kept) = (rule.check)(&step) else { continue };
                *applied += 1;
                if !is_kept && broken.is_none() {
                    broken = Some(&rule.rule);
                }
            }
        }
        Transition {
            after: Slot::of(step.entry_after.as_ref(), self.calendar),
            is_new_grant: step.new_grant().is_some(),
            reply: step.reply,
            broken,
        }
    }
}
