//! Breadth-first search through all states.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use rustc_hash::FxHashSet;

use crate::action::Action;
use crate::config::Config;
use crate::rules::{Rule, STEP_RULES, StepFn};
use crate::world::World;

/// What a search saw.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report {
    /// The number of distinct states.
    pub states: usize,
    /// The number of actions performed.
    pub actions: u64,
    /// The number of distinct combinations of entry, command and time on which `step` ran.
    pub steps: usize,
    /// The number of actions of the longest shortest path to a state.
    pub depth: usize,
    /// Whether all states were visited, and not only as many as the limit permits.
    pub is_complete: bool,
    /// How many distinct steps each rule about single steps applied to.
    pub applied: Vec<(&'static Rule, u64)>,
    /// The first rule that was broken, with the shortest history that breaks it.
    pub violation: Option<Violation>,
}

/// A history that breaks a rule.
#[derive(Debug)]
pub struct Violation {
    /// The rule.
    pub rule: &'static Rule,
    pub(crate) root: usize,
    pub(crate) actions: Vec<Action>,
}

/// Visits the states of a configuration until all are visited, `limit` is reached, or a rule is broken.
///
/// Without `checks_steps`, only the rules about histories are checked.
pub fn explore(config: &Config, run: StepFn, checks_steps: bool, limit: usize) -> Report {
    let mut stepper = config.stepper(run, checks_steps);
    let mut search = Search::default();
    for mut root in config.roots() {
        root.canonicalize();
        search.visit(root, None);
    }
    let roots = search.origins.len();
    let (mut performed, mut depth, mut violation) = (0, 0, None);
    let mut level_end = roots;
    let mut actions = Vec::new();
    let mut index = 0;
    while search.origins.len() < limit
        && let Some(world) = search.queue.pop_front()
    {
        if index == level_end {
            depth += 1;
            level_end = search.origins.len();
        }
        world.actions(config, &mut actions);
        performed += actions.len() as u64;
        for &action in &actions {
            let mut next = world;
            if let Some(rule) = next.apply(action, &mut stepper).broken {
                violation = Some(search.path(roots, index, action, rule));
                break;
            }
            next.canonicalize();
            let index = u32::try_from(index).expect("fewer than 2^32 states");
            search.visit(next, Some((index, action)));
        }
        if violation.is_some() {
            break;
        }
        index += 1;
    }
    Report {
        states: search.origins.len(),
        actions: performed,
        steps: stepper.steps(),
        depth,
        is_complete: violation.is_none() && search.queue.is_empty(),
        applied: STEP_RULES.iter().map(|rule| &rule.rule).zip(stepper.applied).collect(),
        violation,
    }
}

/// The states seen so far. States are numbered in the order in which they were found.
#[derive(Default)]
struct Search {
    /// The hashes of all states: two states with equal hashes are taken for one.
    seen: FxHashSet<u64>,
    /// How each state was found: from which state, by which action. A root has none.
    origins: Vec<Option<(u32, Action)>>,
    /// The states with actions that are still to be performed.
    queue: VecDeque<World>,
}

impl Search {
    fn visit(&mut self, world: World, origin: Option<(u32, Action)>) {
        let mut bytes = StateBytes { bytes: [0; 256], len: 0 };
        world.hash(&mut bytes);
        if self.seen.insert(bytes.finish()) {
            self.origins.push(origin);
            self.queue.push_back(world);
        }
    }

    /// The history that ends with this action in the state with this number.
    fn path(&self, roots: usize, index: usize, last: Action, rule: &'static Rule) -> Violation {
        let mut actions = vec![last];
        let mut root = index;
        while let Some((previous, action)) = self.origins[root] {
            actions.push(action);
            root = previous as usize;
        }
        debug_assert!(root < roots);
        actions.reverse();
        Violation { rule, root, actions }
    }
}

/// Collects a state's fields, so that they are hashed at once.
struct StateBytes {
    bytes: [u8; 256],
    len: usize,
}

impl Hasher for StateBytes {
    fn write(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        self.bytes[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }

    fn finish(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write(&self.bytes[..self.len]);
        hasher.finish()
    }
}
