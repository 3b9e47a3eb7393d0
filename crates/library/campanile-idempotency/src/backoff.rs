//! The delay between a failed attempt and the next one.

use std::time::Duration;

use campanile_core::ConfigError;
#[cfg(feature = "serde")]
use campanile_core::HumanDuration;
use campanile_core::limits::MAX_BACKOFF;

/// Exponential backoff with full jitter: the delay after attempt *n* is random, up to
/// `initial × 2^(n−1)` and at most `max`.
///
/// Full jitter spreads the retries of keys that failed together; see "Exponential Backoff And
/// Jitter" in the AWS Architecture Blog. The default is 1 s, at most 5 min.
///
/// With the feature `serde`, it deserializes from the fields `initial` and `max`, as part of an
/// [`IdempotencyConfig`](crate::IdempotencyConfig).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Backoff {
    initial: Duration,
    max: Duration,
}

impl Backoff {
    /// Creates a backoff that starts at `initial` and doubles up to `max`.
    ///
    /// # Errors
    /// If `initial` is zero or above `max`, or `max` is above 24 h.
    pub fn new(initial: Duration, max: Duration) -> Result<Self, ConfigError> {
        if initial.is_zero() || initial > max || max > MAX_BACKOFF {
            return Err(ConfigError::new(format!(
                "backoff must satisfy 0 < initial ≤ max ≤ {MAX_BACKOFF:?}, \
                 got initial {initial:?} and max {max:?}"
            )));
        }
        Ok(Self { initial, max })
    }

    /// Returns the longest delay.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// Draws a random delay after this attempt. The first attempt is 1.
    pub fn delay(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        let ceiling = self.initial.saturating_mul(1 << doublings).min(self.max);
        ceiling.mul_f64(fastrand::f64())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Backoff {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(rename = "Backoff", deny_unknown_fields)]
        struct Fields {
            initial: Option<HumanDuration>,
            max: Option<HumanDuration>,
        }

        let Fields { initial, max } = Fields::deserialize(deserializer)?;
        let defaults = Self::default();
        let or = |time: Option<HumanDuration>, default| time.map_or(default, |time| time.0);
        Self::new(or(initial, defaults.initial), or(max, defaults.max))
            .map_err(serde::de::Error::custom)
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Duration::from_secs(1), max: Duration::from_secs(5 * 60) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_up_to_maximum() {
        let backoff = Backoff::default();
        for (attempt, ceiling) in [(1, 1), (2, 2), (5, 16), (9, 256), (10, 300), (u32::MAX, 300)] {
            let longest = (0..1000).map(|_| backoff.delay(attempt)).max().unwrap();
            assert!(longest <= Duration::from_secs(ceiling));
            assert!(longest > Duration::from_secs(ceiling) / 2, "of {ceiling} s only {longest:?}");
        }
    }

    #[test]
    fn contradictory_settings_are_rejected() {
        let second = Duration::from_secs(1);
        assert!(Backoff::new(Duration::ZERO, second).is_err());
        assert!(Backoff::new(second * 2, second).is_err());
        assert!(Backoff::new(second, MAX_BACKOFF + second).is_err());
    }

    #[test]
    fn settings_at_bounds_are_accepted() {
        for max in [Duration::from_nanos(1), MAX_BACKOFF] {
            assert_eq!(Backoff::new(max, max).unwrap().max(), max);
        }
    }
}
