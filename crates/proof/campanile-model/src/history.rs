//! The rules of `docs/protocol.md` about whole histories.
//!
//! They do not apply to a client whose lock was cut short by a fault that the protocol names: the
//! store's clock was set forward, the store lost the entry, or an operator took the lock. Everything
//! else holds nevertheless.

use crate::rules::Rule;

pub(crate) static HISTORY_RULES: &[&Rule] =
    &[&OVERLAP, &RUN_TWICE, &LETTER_TWICE, &RUNS, &RISING_TOKEN, &FLOOR, &PAYLOAD, &STEP];

pub(crate) static OVERLAP: Rule = Rule {
    name: "no two clients hold the lock at once, each by its own clock",
    section: "Decision 15",
};

pub(crate) static RUN_TWICE: Rule = Rule {
    name: "the handler does not run for a key that is settled, unless it was reopened or lost",
    section: "Decisions 10 and 14",
};

pub(crate) static LETTER_TWICE: Rule = Rule {
    name: "no dead letter is published for a key that is settled, unless it was reopened or lost",
    section: "Decision 5",
};

pub(crate) static RUNS: Rule = Rule {
    name: "the handler runs at most as often as attempts and uncounted interruptions permit",
    section: "Decision 3",
};

pub(crate) static RISING_TOKEN: Rule = Rule {
    name: "each grant has a larger token, unless the entry was lost and the clock was set back",
    section: "Decision 1",
};

pub(crate) static FLOOR: Rule = Rule {
    name: "no client is granted a token that is not above all that it has seen",
    section: "Decision 1",
};

pub(crate) static STEP: Rule = Rule {
    name: "each later attempt gets a recorded step, until the key is completed or its entry is lost",
    section: "Decision 20",
};

pub(crate) static PAYLOAD: Rule = Rule {
    name: "no client gets the reply to another payload, if both have a fingerprint",
    section: "Decision 7",
};
