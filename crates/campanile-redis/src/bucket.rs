//! The buckets of a namespace: how its keys are spread over hash slots.

use campanile_core::error::ConfigError;

/// How many buckets a namespace has: a power of two, for a bucket is the last bits of the hash.
///
/// The keys of one script must share a slot of a cluster, so each bucket costs a call: few is fast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Buckets(u16);

impl Buckets {
    pub(crate) const DEFAULT: Self = Self(16);

    pub(crate) fn new(count: u16) -> Result<Self, ConfigError> {
        if count.is_power_of_two() && count <= 256 {
            Ok(Self(count))
        } else {
            Err(ConfigError::new(format!("{count} buckets: not a power of two from 1 to 256")))
        }
    }

    pub(crate) fn count(self) -> u16 {
        self.0
    }

    /// The bucket of a key with this hash.
    pub(crate) fn of(self, digest: &[u8; 16]) -> u8 {
        let [.., last] = *digest;
        last & self.mask()
    }

    fn mask(self) -> u8 {
        u8::try_from(self.0 - 1).expect("256 buckets at most")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_the_hash_modulo_their_count() {
        let digest = std::array::from_fn(|i| if i == 15 { 0xb7 } else { 0xff });
        let hash = u128::from_be_bytes(digest);
        for count in [1, 2, 16, 128, 256] {
            let bucket = Buckets::new(count).unwrap().of(&digest);
            assert_eq!(u128::from(bucket), hash % u128::from(count));
        }
    }

    #[test]
    fn only_powers_of_two_that_two_hex_digits_can_name_are_taken() {
        for count in [0, 3, 12, 255, 512, u16::MAX] {
            assert!(Buckets::new(count).is_err(), "{count}");
        }
    }
}
