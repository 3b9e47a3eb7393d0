//! Hash maps for keys that are well-distributed or sequential numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map without protection against hash collisions. All keys are generated in this crate, so no
/// client can make them collide.
pub(crate) type IntMap<K, V> = HashMap<K, V, BuildHasherDefault<IntHasher>>;

/// A hasher for one number, which it multiplies by 2^64 divided by the golden ratio to spread it
/// over all bits.
#[derive(Default)]
pub(crate) struct IntHasher(u64);

impl Hasher for IntHasher {
    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are 64-bit numbers");
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
