//! An entry with all fields writable.

use campanile_core::Entry;

const GIVING_UP: u8 = 8;
const PERMANENT_FAILURE: u8 = 16;
const RELEASED: u8 = 32;

/// An entry's fields as they are stored; see the layout in `docs/protocol.md`. The model has no details,
/// so the tail behind the steps is an error or a reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Raw {
    pub(crate) state: u8,
    pub(crate) giving_up: bool,
    pub(crate) permanent_failure: bool,
    pub(crate) released: bool,
    pub(crate) attempt: u16,
    pub(crate) interrupts: u8,
    pub(crate) give_ups: u8,
    pub(crate) kind: u8,
    pub(crate) token: u64,
    pub(crate) owner: u64,
    pub(crate) fingerprint: u64,
    pub(crate) created: u32,
    pub(crate) at: u64,
    /// Empty if there are none.
    pub(crate) steps: Vec<u8>,
    pub(crate) tail: Vec<u8>,
}

pub(crate) const PROCESSING: u8 = 1;
pub(crate) const RETRYING: u8 = 2;
pub(crate) const COMPLETED: u8 = 3;
pub(crate) const FAILED: u8 = 4;

pub(crate) const NO_TAIL: u8 = 0;
pub(crate) const ERROR: u8 = 1;
pub(crate) const REPLY: u8 = 2;
const STEPS_AND_TAIL: u8 = 5;

impl Raw {
    pub(crate) fn of(entry: &Entry) -> Self {
        let bytes = entry.to_bytes();
        let long = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let steps = entry.steps().map_or(Vec::new(), |steps| steps.as_bytes().to_vec());
        let (kind, tail) = match steps.len() {
            0 => (bytes[6], &bytes[44..]),
            len => (bytes[48 + len], &bytes[49 + len..]),
        };
        Self {
            state: bytes[1] & 7,
            giving_up: bytes[1] & GIVING_UP != 0,
            permanent_failure: bytes[1] & PERMANENT_FAILURE != 0,
            released: bytes[1] & RELEASED != 0,
            attempt: u16::from_be_bytes([bytes[2], bytes[3]]),
            interrupts: bytes[4],
            give_ups: bytes[5],
            kind,
            token: long(8),
            owner: long(16),
            fingerprint: long(24),
            created: (long(28) & u64::from(u32::MAX)) as u32,
            at: long(36),
            steps,
            tail: tail.to_vec(),
        }
    }

    pub(crate) fn has_step(&self, name: &str) -> bool {
        self.split_steps().iter().any(|step| is_step(step, name))
    }

    pub(crate) fn remove_step(&mut self, name: &str) {
        let mut steps = self.split_steps();
        steps.retain(|step| !is_step(step, name));
        self.steps = steps.concat();
    }

    /// The steps one by one, as they are stored.
    fn split_steps(&self) -> Vec<&[u8]> {
        let mut steps = Vec::new();
        let mut rest = &self.steps[..];
        while let Some(&name_len) = rest.first() {
            let result = 5 + usize::from(name_len);
            let result_len = rest[result - 4..result].try_into().expect("4 bytes");
            let (step, others) = rest.split_at(result + u32::from_be_bytes(result_len) as usize);
            steps.push(step);
            rest = others;
        }
        steps
    }

    pub(crate) fn entry(&self) -> Entry {
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        let flags = flag(self.giving_up, GIVING_UP)
            | flag(self.permanent_failure, PERMANENT_FAILURE)
            | flag(self.released, RELEASED);
        let mut bytes = Vec::with_capacity(64);
        bytes.extend([0xC1, self.state | flags]);
        bytes.extend(self.attempt.to_be_bytes());
        let kind = if self.steps.is_empty() { self.kind } else { STEPS_AND_TAIL };
        bytes.extend([self.interrupts, self.give_ups, kind, 0]);
        bytes.extend(self.token.to_be_bytes());
        bytes.extend(self.owner.to_be_bytes());
        bytes.extend(self.fingerprint.to_be_bytes());
        bytes.extend(self.created.to_be_bytes());
        bytes.extend(self.at.to_be_bytes());
        if !self.steps.is_empty() {
            bytes.extend((self.steps.len() as u32).to_be_bytes());
            bytes.extend(&self.steps);
            bytes.push(self.kind);
        }
        bytes.extend(&self.tail);
        Entry::from_bytes(&bytes).expect("the fields of an entry are readable")
    }
}

fn is_step(step: &[u8], name: &str) -> bool {
    usize::from(step[0]) == name.len() && step[1..].starts_with(name.as_bytes())
}
