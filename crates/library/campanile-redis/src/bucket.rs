//! The buckets of a namespace, which spread its keys over hash slots.

use campanile_core::error::ConfigError;

/// The number of buckets of a namespace: a power of two, because a key's bucket is the last bits of
/// its hash.
///
/// The keys of a script call must share one slot of a cluster, so each bucket costs a call of its
/// own. Fewer buckets are faster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Buckets(u16);

impl Buckets {
    pub(crate) const DEFAULT: Self = Self(16);

    pub(crate) fn new(count: u16) -> Result<Self, ConfigError> {
        if count.is_power_of_two() && count <= 256 {
            Ok(Self(count))
        } else {
            Err(ConfigError::new(format!(
                "`buckets` must be a power of two from 1 to 256, got {count}"
            )))
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
        u8::try_from(self.0 - 1).expect("at most 256 buckets")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_is_hash_modulo_bucket_count() {
        let digest = std::array::from_fn(|i| if i == 15 { 0xb7 } else { 0xff });
        let hash = u128::from_be_bytes(digest);
        for count in [1, 2, 16, 128, 256] {
            let bucket = Buckets::new(count).unwrap().of(&digest);
            assert_eq!(u128::from(bucket), hash % u128::from(count));
        }
    }

    #[test]
    fn bucket_count_must_be_power_of_two_up_to_256() {
        for count in [0, 3, 12, 255, 512, u16::MAX] {
            assert!(Buckets::new(count).is_err(), "{count}");
        }
    }
}
