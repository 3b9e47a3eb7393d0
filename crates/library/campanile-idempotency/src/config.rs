//! [`IdempotencyConfig`], the settings of a layer.

use std::ops::RangeInclusive;
use std::time::Duration;

#[cfg(feature = "serde")]
use campanile_core::HumanDuration;
use campanile_core::key::DerivationSecret;
use campanile_core::limits::{MAX_BACKOFF, MAX_LOCK_TTL, MIN_LOCK_TTL};
use campanile_core::{ConfigError, Namespace, Retention};

use crate::backoff::Backoff;
use crate::keeper::LockSettings;
use crate::telemetry::LayerMetrics;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const MAX_HOLD: Duration = DAY;
const MAX_RETENTION: Duration = DAY.saturating_mul(10 * 365);
/// The longest backoff plus the longest lock.
const MIN_ATTEMPT_RETENTION: Duration = MAX_BACKOFF.saturating_add(MAX_LOCK_TTL);

/// The settings of an [`IdempotencyLayer`](crate::IdempotencyLayer). The name of a namespace alone
/// converts into them.
///
/// [`IdempotencyLayer::new`](crate::IdempotencyLayer::new) checks the settings. Its error names the
/// setting, its value and its bounds.
///
/// ```
/// use campanile_idempotency::IdempotencyConfig;
/// use std::time::Duration;
///
/// let config = IdempotencyConfig::new("payments")
///     .with_lock_ttl(Duration::from_secs(10))
///     .with_max_attempts(5);
/// ```
///
/// # Configuration files
///
/// With the feature `serde`, the settings implement `Deserialize`. `namespace` is required; every
/// other field has the name and the default of its method: `lock_ttl`, `max_hold`, `max_attempts`,
/// `backoff` with `initial` and `max`, `retention`, `attempt_retention`, `failed_retention`,
/// `max_reply_bytes`, `stored_keys`, `stored_errors`, `completed_details` and `derivation_secret`.
/// Durations are strings such as `"30s"`, `"500ms"` or `"7d"`, and the secret is a string. An unknown
/// field is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct IdempotencyConfig {
    namespace: Box<str>,
    lock_ttl: Duration,
    max_hold: Duration,
    max_attempts: u32,
    backoff: Backoff,
    retention: Duration,
    attempt_retention: Duration,
    failed_retention: Duration,
    max_reply_bytes: usize,
    stored_keys: bool,
    stored_errors: bool,
    completed_details: bool,
    derivation_secret: Option<DerivationSecret>,
}

impl IdempotencyConfig {
    /// Creates the default settings for the keys of this namespace: 1 to 64 characters of
    /// `[a-z0-9._-]`.
    pub fn new(namespace: impl Into<String>) -> Self {
        let Retention { completed, attempts, failed } = Retention::default();
        Self {
            namespace: namespace.into().into(),
            lock_ttl: 30 * SECOND,
            max_hold: 600 * SECOND,
            max_attempts: 8,
            backoff: Backoff::default(),
            retention: completed,
            attempt_retention: attempts,
            failed_retention: failed,
            max_reply_bytes: 4 * 1024,
            stored_keys: true,
            stored_errors: true,
            completed_details: false,
            derivation_secret: None,
        }
    }

    /// Sets how long a lock lives without a renewal, from 500 ms to 1 h.
    ///
    /// Default: 30 s. This is how long a crashed process blocks its keys, and it is longer than a
    /// store failover that takes seconds. The lock keeper waits for a call to the store for at most
    /// a sixth of the TTL, and at most 5 s. It logs a warning if the store's own timeouts are
    /// longer.
    pub fn with_lock_ttl(mut self, ttl: Duration) -> Self {
        self.lock_ttl = ttl;
        self
    }

    /// Sets how long a handler can hold its lock, from 500 ms to 24 h; after that, the lock is no longer
    /// renewed, and is lost. Default: 10 min, so that a handler that hangs ends eventually.
    ///
    /// A record that waits for its turn with a lock holds it for as long at most, before its handler
    /// starts. Then it acquires the lock again, which counts no attempt.
    pub fn with_max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = max_hold;
        self
    }

    /// Sets the number of attempts per key, including crashed ones, from 1 to 65 535. Default: 8.
    /// The default backoffs between them take at most 127 s together, in addition to the time of the
    /// handler.
    pub fn with_max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Sets the backoff after a failed attempt. Default: 1 s, doubling to 5 min, with full jitter.
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets how long a COMPLETED entry is kept, from 1 s to 10 years. After that, a duplicate runs
    /// the handler again.
    ///
    /// Default: 7 d, because Kafka keeps records for 7 d by default. `campanile
    /// doctor` reports a topic that keeps them longer.
    pub fn with_retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Sets how long an entry with attempts but without an outcome is kept, and thus how long its
    /// attempts count: from 25 h, which is the longest backoff plus the longest lock, to 10 years.
    /// Default: 7 d. It must cover the longest outage and backoff.
    pub fn with_attempt_retention(mut self, retention: Duration) -> Self {
        self.attempt_retention = retention;
        self
    }

    /// Sets how long a FAILED entry is kept, from 1 s to 10 years. After that, the key of a poison
    /// record gets all its attempts again. Default: 30 d.
    pub fn with_failed_retention(mut self, retention: Duration) -> Self {
        self.failed_retention = retention;
        self
    }

    /// Sets the maximum size of a kept reply, in bytes after encoding and encryption; see
    /// [`on_large_reply`](crate::IdempotencyLayer::on_large_reply). Default: 4 KiB, because the
    /// store keeps each reply for the whole retention.
    pub fn with_max_reply_bytes(mut self, bytes: usize) -> Self {
        self.max_reply_bytes = bytes;
        self
    }

    /// Sets whether an entry that is not COMPLETED contains the idempotency key, or its first 255
    /// bytes. Without it, the tools that list entries show only its hash. Default: `true`; set it to
    /// `false` if keys contain personal data that the store may not have.
    pub fn with_stored_keys(mut self, stored: bool) -> Self {
        self.stored_keys = stored;
        self
    }

    /// Sets whether an entry contains the text of the last error, or its first 512 bytes. Without it,
    /// a dead letter that is published by another process than the one whose attempt failed has no
    /// error text, and neither have the tools that list entries. Default: `true`; set it to `false` if
    /// errors contain personal data that the store may not have.
    pub fn with_stored_errors(mut self, stored: bool) -> Self {
        self.stored_errors = stored;
        self
    }

    /// Sets whether a COMPLETED entry keeps its details: which process ran the handler, for which
    /// record, and in which trace. A duplicate's [`details`](campanile_core::Duplicate::details) then
    /// name the first run.
    ///
    /// Default: `false`, because the details add about 150 bytes to an entry of about 180 in Redis.
    pub fn with_completed_details(mut self, kept: bool) -> Self {
        self.completed_details = kept;
        self
    }

    /// Sets the secret of the keys that handlers [derive](campanile_core::LockHandle::derive) for their
    /// own calls. Default: none, so the keys can be computed from the event's key, because most
    /// receivers separate their clients by credentials.
    ///
    /// All processes of the namespace need the same secret. If it is changed, added or removed, an
    /// event that is tried both before and after the change has two keys, and its effect may happen
    /// twice.
    pub fn with_derivation_secret(mut self, secret: DerivationSecret) -> Self {
        self.derivation_secret = Some(secret);
        self
    }

    /// Checks the settings as [`IdempotencyLayer::new`](crate::IdempotencyLayer::new) does, and returns
    /// the namespace.
    ///
    /// # Errors
    /// Fails if a setting is out of its bounds, or if the namespace has other characters.
    pub fn validate(&self) -> Result<Namespace, ConfigError> {
        let Self { lock_ttl, max_hold, retention, attempt_retention, failed_retention, .. } = *self;
        check("lock_ttl", lock_ttl, MIN_LOCK_TTL..=MAX_LOCK_TTL)?;
        check("max_hold", max_hold, MIN_LOCK_TTL..=MAX_HOLD)?;
        check("retention", retention, SECOND..=MAX_RETENTION)?;
        check("attempt_retention", attempt_retention, MIN_ATTEMPT_RETENTION..=MAX_RETENTION)?;
        check("failed_retention", failed_retention, SECOND..=MAX_RETENTION)?;
        if !(1..=u16::MAX.into()).contains(&self.max_attempts) {
            let (max, attempts) = (u16::MAX, self.max_attempts);
            return Err(ConfigError::new(format!(
                "`max_attempts` must be between 1 and {max}, got {attempts}"
            )));
        }
        Namespace::try_from(&*self.namespace)
    }

    /// Returns how long a lock lives without a renewal.
    pub fn lock_ttl(&self) -> Duration {
        self.lock_ttl
    }

    /// Returns how long a lock is held at most.
    pub fn max_hold(&self) -> Duration {
        self.max_hold
    }

    /// Returns the backoff after a failed attempt.
    pub fn backoff(&self) -> Backoff {
        self.backoff
    }

    /// Returns how long a COMPLETED entry is kept.
    pub fn retention(&self) -> Duration {
        self.retention
    }

    /// Returns how long an entry with attempts but without an outcome is kept.
    pub fn attempt_retention(&self) -> Duration {
        self.attempt_retention
    }

    /// Returns how long a FAILED entry is kept.
    pub fn failed_retention(&self) -> Duration {
        self.failed_retention
    }

    /// Checks the settings, and resolves the metrics of the layer.
    pub(crate) fn checked(self) -> Result<CheckedConfig, ConfigError> {
        let namespace = self.validate()?;
        let metrics = LayerMetrics::new(&namespace);
        Ok(CheckedConfig {
            namespace,
            settings: LockSettings {
                ttl: self.lock_ttl,
                max_attempts: u16::try_from(self.max_attempts).expect("validated"),
                max_hold: self.max_hold,
                retention: Retention {
                    completed: self.retention,
                    attempts: self.attempt_retention,
                    failed: self.failed_retention,
                },
                store_keys: self.stored_keys,
                store_errors: self.stored_errors,
                keep_details: self.completed_details,
                derivation_secret: self.derivation_secret,
                metrics,
            },
            backoff: self.backoff,
            max_reply_bytes: self.max_reply_bytes,
        })
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for IdempotencyConfig {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(rename = "IdempotencyConfig", deny_unknown_fields)]
        struct Fields {
            namespace: Box<str>,
            lock_ttl: Option<HumanDuration>,
            max_hold: Option<HumanDuration>,
            max_attempts: Option<u32>,
            backoff: Option<Backoff>,
            retention: Option<HumanDuration>,
            attempt_retention: Option<HumanDuration>,
            failed_retention: Option<HumanDuration>,
            max_reply_bytes: Option<usize>,
            stored_keys: Option<bool>,
            stored_errors: Option<bool>,
            completed_details: Option<bool>,
            derivation_secret: Option<Box<str>>,
        }

        let fields = Fields::deserialize(deserializer)?;
        let defaults = Self::new(fields.namespace);
        let or = |time: Option<HumanDuration>, default| time.map_or(default, |time| time.0);
        let secret = |text: Box<str>| DerivationSecret::new(text.as_bytes());
        Ok(Self {
            lock_ttl: or(fields.lock_ttl, defaults.lock_ttl),
            max_hold: or(fields.max_hold, defaults.max_hold),
            max_attempts: fields.max_attempts.unwrap_or(defaults.max_attempts),
            backoff: fields.backoff.unwrap_or(defaults.backoff),
            retention: or(fields.retention, defaults.retention),
            attempt_retention: or(fields.attempt_retention, defaults.attempt_retention),
            failed_retention: or(fields.failed_retention, defaults.failed_retention),
            max_reply_bytes: fields.max_reply_bytes.unwrap_or(defaults.max_reply_bytes),
            stored_keys: fields.stored_keys.unwrap_or(defaults.stored_keys),
            stored_errors: fields.stored_errors.unwrap_or(defaults.stored_errors),
            completed_details: fields.completed_details.unwrap_or(defaults.completed_details),
            derivation_secret: (fields.derivation_secret.map(secret).transpose())
                .map_err(serde::de::Error::custom)?,
            namespace: defaults.namespace,
        })
    }
}

/// The parts of a valid configuration.
pub(crate) struct CheckedConfig {
    pub(crate) namespace: Namespace,
    pub(crate) settings: LockSettings,
    pub(crate) backoff: Backoff,
    pub(crate) max_reply_bytes: usize,
}

impl From<&str> for IdempotencyConfig {
    fn from(namespace: &str) -> Self {
        Self::new(namespace)
    }
}

impl From<String> for IdempotencyConfig {
    fn from(namespace: String) -> Self {
        Self::new(namespace)
    }
}

impl From<Namespace> for IdempotencyConfig {
    fn from(namespace: Namespace) -> Self {
        Self::new(namespace.as_str())
    }
}

fn check(name: &str, value: Duration, bounds: RangeInclusive<Duration>) -> Result<(), ConfigError> {
    if bounds.contains(&value) {
        return Ok(());
    }
    let (min, max) = (display(*bounds.start()), display(*bounds.end()));
    Err(ConfigError::new(format!("`{name}` must be between {min} and {max}, got {value:?}")))
}

/// Displays long times in hours or days, which read better than seconds.
fn display(bound: Duration) -> String {
    match bound {
        MAX_RETENTION => "10 years".to_owned(),
        _ if bound >= HOUR => format!("{} h", bound.as_secs() / HOUR.as_secs()),
        _ => format!("{bound:?}"),
    }
}

#[cfg(test)]
mod tests;
