//! Maps by numbers that are spread already, or that count up.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Keys are made here and by nobody else, so that no one can make them collide.
pub(crate) type ByNumber<K, V> = HashMap<K, V, BuildHasherDefault<Number>>;

/// Spreads one number over all bits, by multiplication with the golden ratio's.
#[derive(Default)]
pub(crate) struct Number(u64);

impl Hasher for Number {
    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers of 64 bits");
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
