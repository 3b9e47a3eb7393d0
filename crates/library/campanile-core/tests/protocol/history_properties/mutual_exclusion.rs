//! Locks do not overlap, and no effect is repeated without a cause.
//!
//! A second run follows, as it must, from a crash between an effect and its completion, from a lock
//! that expired while its holder was paused, and from a failed attempt. Nothing else may cause one.

use std::collections::{HashMap, HashSet};

use campanile_core::{Grant, Reply};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use crate::check::check;
use crate::simulation::{Ending, Event, Faults, History, histories};

#[test]
fn repeated_effect_has_a_cause() {
    check(300, &histories(Faults::CLOCK), |history| {
        assert_repeats_have_a_cause(&history, |event| match event {
            Event::Effect { key, grant } => Some((*key, *grant)),
            _ => None,
        })
    });
}

#[test]
fn repeated_dead_letter_has_a_cause() {
    check(300, &histories(Faults::CLOCK), |history| {
        assert_repeats_have_a_cause(&history, |event| match event {
            Event::DeadLetter { key, grant } => Some((*key, *grant)),
            _ => None,
        })
    });
}

#[test]
fn locks_never_overlap_by_the_clocks_of_their_clients() {
    check(300, &histories(Faults::CLOCK), |history| {
        let mut grants = HeldGrants::default();
        for (elapsed, event) in history.events() {
            if let Event::LockHeld { key, grant, .. } = event {
                let others = grants.held.iter().filter(|(other, _)| *other != grant);
                let mut live = others.filter(|(_, held)| held.key == *key && held.until > *elapsed);
                prop_assert!(live.next().is_none(), "{grant:?} overlaps another lock");
            }
            grants.observe(event);
        }
        Ok(())
    });
}

/// The grants that the clients believe they hold.
#[derive(Default)]
struct HeldGrants {
    held: HashMap<Grant, Held>,
    /// Grants that lost their lock early, because the store's clock jumped ahead.
    ended_early: HashSet<Grant>,
}

struct Held {
    key: usize,
    client: usize,
    until: u64,
}

impl HeldGrants {
    fn observe(&mut self, event: &Event) {
        match event {
            // A renewal does not repair a lock that was cut short: its holder still counts on the
            // later deadline that it was granted before.
            Event::LockHeld { grant, .. } if self.ended_early.contains(grant) => {}
            &Event::LockHeld { key, client, grant, until } => {
                self.held.insert(grant, Held { key, client, until });
            }
            // Only a retryable ending gives up the lock. After a final one, the client repeats its
            // command until it is answered, and the lock protects the key meanwhile.
            Event::RunEnded { grant, ending: Ending::Retryable } => drop(self.held.remove(grant)),
            Event::Crashed { client } => self.held.retain(|_, held| held.client != *client),
            Event::ClockJumped { forward: true } => {
                self.ended_early.extend(self.held.drain().map(|(grant, _)| grant));
            }
            Event::Stepped { key, step } if step.reply == Reply::Reopened => {
                self.held.retain(|_, held| held.key != *key);
            }
            _ => {}
        }
    }

    fn is_held(&self, grant: Grant, elapsed: u64) -> bool {
        self.held.get(&grant).is_some_and(|held| held.until > elapsed)
    }
}

/// The last effect or dead letter of a key, and whether the key is settled.
#[derive(Default)]
struct KeyState {
    last: Option<Grant>,
    /// Set by the store's reply; cleared when the retention expires or an operator reopens the key.
    is_settled: bool,
}

fn assert_repeats_have_a_cause(
    history: &History,
    select: impl Fn(&Event) -> Option<(usize, Grant)>,
) -> TestCaseResult {
    let mut grants = HeldGrants::default();
    let mut keys: HashMap<usize, KeyState> = HashMap::new();
    for (elapsed, event) in history.events() {
        if let Some((index, grant)) = select(event) {
            let key = keys.entry(index).or_default();
            if !grants.ended_early.contains(&grant) {
                prop_assert!(!key.is_settled, "{grant:?} ran after the key was settled");
                let unexcused =
                    key.last.filter(|last| *last != grant && grants.is_held(*last, *elapsed));
                prop_assert_eq!(unexcused, None, "{:?} ran while another held the key", grant);
            }
            key.last = Some(grant);
        }
        match event {
            Event::Stepped { key, step } => keys.entry(*key).or_default().observe(&step.reply),
            Event::Expired { key } => drop(keys.remove(key)),
            _ => {}
        }
        grants.observe(event);
    }
    Ok(())
}

impl KeyState {
    fn observe(&mut self, reply: &Reply) {
        match reply {
            Reply::Completed | Reply::GivenUp => self.is_settled = true,
            Reply::Reopened => *self = Self::default(),
            _ => {}
        }
    }
}
