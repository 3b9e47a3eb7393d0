//! Rules that select the fault of each call.

use campanile_core::Command;
use fastrand::Rng;

use super::Fault;

/// The rules in the order in which they are tried: one-time faults, lasting faults, random faults.
#[derive(Debug, Default)]
pub(super) struct Rules {
    once: Vec<Rule>,
    lasting: Vec<Rule>,
    random: Option<(Rng, Vec<(f64, Fault)>)>,
}

#[derive(Debug)]
struct Rule {
    /// If set, the rule applies only to calls with a command of this name.
    operation: Option<String>,
    /// The number of calls that pass before the rule applies.
    skipped: usize,
    fault: Fault,
}

impl Rules {
    pub(super) fn once(&mut self, operation: Option<&str>, fault: Fault) {
        self.once.push(Rule::new(operation, fault));
    }

    pub(super) fn nth(&mut self, skipped: usize, fault: Fault) {
        self.once.push(Rule { skipped, ..Rule::new(None, fault) });
    }

    pub(super) fn lasting(&mut self, operation: Option<&str>, fault: Fault) {
        self.lasting.push(Rule::new(operation, fault));
    }

    pub(super) fn random(&mut self, seed: u64, odds: Vec<(f64, Fault)>) {
        self.random = Some((Rng::with_seed(seed), odds));
    }

    pub(super) fn select(&mut self, commands: &[Command]) -> Option<Fault> {
        if let Some(index) = self.once.iter_mut().position(|rule| rule.is_due(commands)) {
            return Some(self.once.remove(index).fault);
        }
        if let Some(rule) = self.lasting.iter().find(|rule| rule.applies(commands)) {
            return Some(rule.fault);
        }
        let (rng, odds) = self.random.as_mut()?;
        let mut drawn = rng.f64();
        odds.iter().find_map(|(probability, fault)| {
            drawn -= probability;
            (drawn < 0.0).then_some(*fault)
        })
    }
}

impl Rule {
    fn new(operation: Option<&str>, fault: Fault) -> Self {
        Self { operation: operation.map(Into::into), skipped: 0, fault }
    }

    /// Counts this call, if the rule applies to it.
    fn is_due(&mut self, commands: &[Command]) -> bool {
        if !self.applies(commands) {
            return false;
        }
        let skipped = self.skipped;
        self.skipped = skipped.saturating_sub(1);
        skipped == 0
    }

    fn applies(&self, commands: &[Command]) -> bool {
        self.operation.as_ref().is_none_or(|operation| {
            commands.iter().any(|command| command.operation.name() == operation)
        })
    }
}
