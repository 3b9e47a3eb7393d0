//! The effects of handlers, in a file that survives a SIGKILL of the process.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

use campanile::BoxError;

/// The length of a line, with its end.
const LINE: usize = "000000000000 0000 000000000000\n".len();

/// A ledger that is open for appending.
pub(super) struct Ledger(File);

/// One effect: the number in its key, and the coordinates of the record that caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Effect {
    pub(super) number: u64,
    pub(super) partition: i32,
    pub(super) offset: i64,
}

impl Ledger {
    pub(super) fn open(path: &Path) -> Result<Self, BoxError> {
        Ok(Self(OpenOptions::new().create(true).append(true).open(path)?))
    }

    /// Appends an effect, with a single write.
    pub(super) fn append(&self, effect: Effect) -> Result<(), BoxError> {
        let Effect { number, partition, offset } = effect;
        let line = format!("{number:012} {partition:04} {offset:012}\n");
        Ok((&self.0).write_all(line.as_bytes())?)
    }
}

/// Counts the effects in a ledger. A missing ledger has none.
pub(super) fn count(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |file| file.len() / LINE as u64)
}

/// Reads a ledger, in the order of its effects.
pub(super) fn read(path: &Path) -> Result<Vec<Effect>, BoxError> {
    fs::read_to_string(path)?.lines().map(parse).collect()
}

fn parse(line: &str) -> Result<Effect, BoxError> {
    let mut fields = line.split(' ');
    let mut next = || fields.next().ok_or_else(|| format!("invalid line of a ledger: {line}"));
    Ok(Effect { number: next()?.parse()?, partition: next()?.parse()?, offset: next()?.parse()? })
}

/// What is wrong with the effects of a topic that has been consumed completely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    /// Keys without an effect.
    pub(super) lost: u64,
    /// Further effects of a key by a record that had an effect before.
    pub(super) repeated: u64,
    /// Further effects of a key by another record with this key.
    pub(super) duplicated: u64,
}

impl Faults {
    /// Compares the effects with the keys of the topic's records, which are numbers.
    pub(super) fn count(effects: &[Effect], expected: impl Iterator<Item = u64>) -> Self {
        let (mut faults, mut keys, mut records) = (Self::default(), HashSet::new(), HashSet::new());
        for effect in effects {
            let is_new_key = keys.insert(effect.number);
            if !records.insert((effect.partition, effect.offset)) {
                faults.repeated += 1;
            } else if !is_new_key {
                faults.duplicated += 1;
            }
        }
        let expected: HashSet<_> = expected.collect();
        faults.lost = expected.difference(&keys).count() as u64;
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(number: u64, partition: i32, offset: i64) -> Effect {
        Effect { number, partition, offset }
    }

    #[test]
    fn ledger_keeps_effects_of_two_processes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let effects = [effect(7, 0, 1), effect(u64::from(u32::MAX), 59, 400_000)];
        assert_eq!(count(&path), 0);
        for (before, effect) in effects.into_iter().enumerate() {
            assert_eq!(count(&path), before as u64);
            Ledger::open(&path).unwrap().append(effect).unwrap();
        }
        assert_eq!(read(&path).unwrap(), effects);
    }

    #[test]
    fn each_key_with_one_effect_is_no_fault() {
        let effects = [effect(1, 0, 0), effect(0, 1, 0)];
        assert_eq!(Faults::count(&effects, [0, 1, 0].into_iter()), Faults::default());
    }

    #[test]
    fn lost_repeated_and_duplicated_effects_are_counted() {
        // Record 0@0 has three effects, and 1@5 is a duplicate of it. Keys 1 and 3 have none.
        let effects =
            [effect(0, 0, 0), effect(2, 1, 4), effect(0, 0, 0), effect(0, 1, 5), effect(0, 0, 0)];
        let faults = Faults::count(&effects, [0, 1, 2, 0, 3].into_iter());
        assert_eq!(faults, Faults { lost: 2, repeated: 2, duplicated: 1 });
    }
}
