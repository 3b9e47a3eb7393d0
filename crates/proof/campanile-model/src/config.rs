//! What the explorer explores: the clients, and how often each fault may occur.

use crate::action::Budget;
use crate::compact::{Calendar, Slot, TICK};
use crate::rules::StepFn;
use crate::stepper::Stepper;
use crate::world::World;

// The names of the configurations.
pub(crate) const TWO_CLIENTS: &str = "two clients";
pub(crate) const THREE_CLIENTS: &str = "three clients";
pub(crate) const OPERATOR: &str = "two payloads, an operator, the end of retention";
pub(crate) const FINGERPRINTS: &str = "payloads with and without a fingerprint";
pub(crate) const STEPS: &str = "a handler with two steps, an operator";
pub(crate) const CLOCKS: &str = "clocks that step";
pub(crate) const ANY_COMMAND: &str = "clients that send any command";
pub(crate) const LIMITS: &str = "counters at their limits";
pub(crate) const NO_LIMIT: &str = "counters at their limits, attempts without a limit";
pub(crate) const LAST_TOKENS: &str = "the last tokens";
pub(crate) const EVICTION: &str = "a store that evicts";
pub(crate) const FAILOVER: &str = "a store that fails over, with a clock that is behind";

/// A part of the model, small enough to be explored completely.
#[derive(Clone, Debug)]
pub struct Config {
    /// A name for the report.
    pub name: &'static str,
    pub(crate) clients: u8,
    /// Zero is a payload without a fingerprint.
    pub(crate) payloads: &'static [u8],
    /// Zero is no limit.
    pub(crate) max_attempts: u16,
    pub(crate) budget: Budget,
    /// Whether a client may send any command with its grant, also one after another.
    pub(crate) any_command: bool,
    start: Start,
}

/// Where histories begin.
#[derive(Clone, Copy, Debug)]
enum Start {
    /// Without an entry.
    Empty,
    /// With entries with counters near their limits.
    Limits,
    /// Without an entry, some ticks before the last token.
    LastTokens,
}

/// How often things may happen in the configurations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// So seldom that all histories can be explored.
    Small,
    /// More often. Not all states fit into memory.
    Full,
}

const NOTHING: Budget = Budget {
    acquisitions: 0,
    ticks: 0,
    steps: 0,
    crashes: 0,
    copies: 0,
    redrives: 0,
    takes: 0,
    forward: 0,
    back: 0,
    expirations: 0,
    evictions: 0,
    failovers: 0,
};

impl Config {
    /// The configurations of a size. Those in which the store loses data come last.
    pub fn all(size: Size) -> Vec<Self> {
        let pick = |small, full| if size == Size::Full { full } else { small };
        let base = Self {
            name: "",
            clients: 2,
            payloads: &[1],
            max_attempts: 1,
            budget: Budget {
                acquisitions: pick(2, 3),
                ticks: pick(2, 3),
                crashes: pick(0, 1),
                copies: 1,
                ..NOTHING
            },
            any_command: false,
            start: Start::Empty,
        };
        vec![
            Self {
                name: TWO_CLIENTS,
                max_attempts: 2,
                budget: Budget { acquisitions: pick(3, 4), redrives: pick(0, 1), ..base.budget },
                ..base
            },
            Self {
                name: THREE_CLIENTS,
                clients: 3,
                budget: Budget { acquisitions: 3, copies: pick(0, 1), ..base.budget },
                ..base
            },
            Self {
                name: OPERATOR,
                payloads: &[1, 2],
                budget: Budget { takes: 1, redrives: 1, expirations: 1, ticks: 1, ..base.budget },
                ..base
            },
            Self {
                name: FINGERPRINTS,
                payloads: &[0, 1, 2],
                max_attempts: 2,
                budget: Budget {
                    acquisitions: 3,
                    ticks: 2,
                    copies: pick(0, 1),
                    expirations: 1,
                    ..base.budget
                },
                ..base
            },
            Self {
                name: STEPS,
                max_attempts: 2,
                budget: Budget { steps: 3, redrives: 1, ..base.budget },
                ..base
            },
            Self { name: CLOCKS, budget: Budget { forward: 1, back: 1, ..base.budget }, ..base },
            Self { name: ANY_COMMAND, any_command: true, ..base },
            Self {
                name: LIMITS,
                start: Start::Limits,
                budget: Budget { acquisitions: 2, ticks: 2, redrives: 1, ..base.budget },
                ..base
            },
            Self {
                name: NO_LIMIT,
                max_attempts: 0,
                start: Start::Limits,
                budget: Budget { acquisitions: 2, ticks: 2, ..base.budget },
                ..base
            },
            Self {
                name: LAST_TOKENS,
                start: Start::LastTokens,
                budget: Budget { expirations: 1, ..base.budget },
                ..base
            },
            Self { name: EVICTION, budget: Budget { evictions: 1, ..base.budget }, ..base },
            Self {
                name: FAILOVER,
                budget: Budget { failovers: 1, back: 1, copies: pick(0, 1), ..base.budget },
                ..base
            },
        ]
    }

    /// Describes how often each thing may happen.
    pub fn bounds(&self) -> String {
        let Budget {
            acquisitions,
            ticks,
            steps,
            crashes,
            copies,
            redrives,
            takes,
            forward,
            back,
            expirations,
            evictions,
            failovers,
        } = self.budget;
        let bounds = [
            (acquisitions, "acquisitions"),
            (ticks, "half hours"),
            (steps, "results of steps"),
            (crashes, "crashes"),
            (copies, "late copies"),
            (redrives, "redrives"),
            (takes, "locks taken"),
            (forward, "clock steps forward"),
            (back, "clock steps back"),
            (expirations, "ends of retention"),
            (evictions, "evictions"),
            (failovers, "failovers"),
        ];
        let bounds = bounds.iter().filter(|(count, _)| *count > 0);
        bounds.map(|(count, what)| format!("{what} {count}")).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn stepper(&self, run: StepFn, checks_steps: bool) -> Stepper {
        let origin = match self.start {
            Start::LastTokens => (1 << 53) - TICK.as_micros() as u64,
            Start::Empty | Start::Limits => 1_800_000_000_000_000,
        };
        Stepper::new(run, Calendar { origin }, self.max_attempts, checks_steps)
    }

    pub(crate) fn roots(&self) -> Vec<World> {
        let entries = match self.start {
            Start::Empty | Start::LastTokens => vec![Slot::EMPTY],
            Start::Limits => vec![
                Slot::released(0, 7, 0),
                Slot::released(0, 8, 0),
                Slot::released(1, 8, 255),
                Slot::released(1, 0, 1),
                Slot::released(u16::MAX, 8, 254),
            ],
        };
        let world = |entry| World::new(entry, self.clients, self.budget, self.max_attempts);
        entries.into_iter().map(world).collect()
    }
}
