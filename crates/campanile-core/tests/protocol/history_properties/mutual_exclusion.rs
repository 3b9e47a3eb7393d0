//! What happens twice happens for a reason.
//!
//! A crash between an effect and its completion, a lock that ran out while its holder was paused, a
//! failed attempt: these bring a second run, and must. Nothing else may.

use std::collections::{HashMap, HashSet};

use campanile_core::{Grant, Reply};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use crate::check::check;
use crate::world::{Ending, Event, Faults, History, histories};

#[test]
fn a_second_effect_has_a_cause() {
    check(300, &histories(Faults::CLOCK), |history| {
        nothing_comes_twice_without_a_cause(&history, |event| match event {
            Event::Effect { key, grant } => Some((*key, *grant)),
            _ => None,
        })
    });
}

#[test]
fn dead_letters_are_at_most_one_and_the_excused() {
    check(300, &histories(Faults::CLOCK), |history| {
        nothing_comes_twice_without_a_cause(&history, |event| match event {
            Event::Letter { key, grant } => Some((*key, *grant)),
            _ => None,
        })
    });
}

#[test]
fn no_two_clients_hold_a_lock_by_their_own_clocks() {
    check(300, &histories(Faults::CLOCK), |history| {
        let mut grants = Grants::default();
        for (elapsed, event) in history.events() {
            if let Event::Holds { key, grant, .. } = event {
                let others = grants.held.iter().filter(|(other, _)| *other != grant);
                let mut live = others.filter(|(_, held)| held.key == *key && held.until > *elapsed);
                prop_assert!(live.next().is_none(), "{grant:?} beside another");
            }
            grants.note(event);
        }
        Ok(())
    });
}

/// What the clients believe.
#[derive(Default)]
struct Grants {
    held: HashMap<Grant, Held>,
    /// Those whose lock the store ended early, for its clock jumped on.
    cut_short: HashSet<Grant>,
}

struct Held {
    key: usize,
    client: usize,
    until: u64,
}

impl Grants {
    fn note(&mut self, event: &Event) {
        match event {
            // A renewal does not mend a lock that was cut short: its holder goes on to count on the
            // longer time that it was once promised.
            Event::Holds { grant, .. } if self.cut_short.contains(grant) => {}
            &Event::Holds { key, client, grant, until } => {
                self.held.insert(grant, Held { key, client, until });
            }
            // Who ends for good repeats that until it is answered, and is protected meanwhile.
            Event::LetGo { grant, how: Ending::ForNow } => drop(self.held.remove(grant)),
            Event::Crashed { client } => self.held.retain(|_, held| held.client != *client),
            Event::Jumped { forward: true } => {
                self.cut_short.extend(self.held.drain().map(|(grant, _)| grant));
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

/// The last effect, or letter, of a key, and whether the key is settled.
#[derive(Default)]
struct Key {
    last: Option<Grant>,
    /// The store said that it is, until its retention is over or an operator opens it.
    is_settled: bool,
}

fn nothing_comes_twice_without_a_cause(
    history: &History,
    what: impl Fn(&Event) -> Option<(usize, Grant)>,
) -> TestCaseResult {
    let mut grants = Grants::default();
    let mut keys: HashMap<usize, Key> = HashMap::new();
    for (elapsed, event) in history.events() {
        if let Some((index, grant)) = what(event) {
            let key = keys.entry(index).or_default();
            if !grants.cut_short.contains(&grant) {
                prop_assert!(!key.is_settled, "{grant:?} after the key was settled");
                let unexcused =
                    key.last.filter(|last| *last != grant && grants.is_held(*last, *elapsed));
                prop_assert_eq!(unexcused, None, "{:?} while another still held the key", grant);
            }
            key.last = Some(grant);
        }
        match event {
            Event::Stepped { key, step } => keys.entry(*key).or_default().note(&step.reply),
            Event::Expired { key } => drop(keys.remove(key)),
            _ => {}
        }
        grants.note(event);
    }
    Ok(())
}

impl Key {
    fn note(&mut self, reply: &Reply) {
        match reply {
            Reply::Completed | Reply::Rejected => self.is_settled = true,
            Reply::Reopened => *self = Self::default(),
            _ => {}
        }
    }
}
