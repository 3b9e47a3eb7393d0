//! Tests of the settings.

use super::*;

#[cfg(feature = "serde")]
fn parse(json: &str) -> Result<IdempotencyConfig, serde_json::Error> {
    serde_json::from_str(json)
}

#[cfg(feature = "serde")]
#[test]
fn deserialized_fields_have_the_names_of_the_methods() {
    let json = r#"{
        "namespace": "payments", "lock_ttl": "10s", "max_hold": "5m", "max_attempts": 3,
        "backoff": { "initial": "2s", "max": "1m" }, "retention": "14d",
        "attempt_retention": "2d", "failed_retention": "60d", "max_reply_bytes": 100,
        "stored_keys": false, "stored_errors": false, "completed_details": true,
        "derivation_secret": "0123456789abcdef0123456789abcdef"
    }"#;
    let expected = config()
        .with_lock_ttl(10 * SECOND)
        .with_max_hold(300 * SECOND)
        .with_max_attempts(3)
        .with_backoff(Backoff::new(2 * SECOND, 60 * SECOND).unwrap())
        .with_retention(14 * DAY)
        .with_attempt_retention(2 * DAY)
        .with_failed_retention(60 * DAY)
        .with_max_reply_bytes(100)
        .with_stored_keys(false)
        .with_stored_errors(false)
        .with_completed_details(true)
        .with_derivation_secret(DerivationSecret::new("0123456789abcdef0123456789abcdef").unwrap());
    assert_eq!(parse(json).unwrap(), expected);
}

#[cfg(feature = "serde")]
#[test]
fn missing_fields_deserialize_to_the_defaults() {
    assert_eq!(parse(r#"{ "namespace": "payments" }"#).unwrap(), config());
    let partial = parse(r#"{ "namespace": "payments", "backoff": { "max": "1m" } }"#).unwrap();
    let backoff = Backoff::new(SECOND, 60 * SECOND).unwrap();
    assert_eq!(partial, config().with_backoff(backoff));
}

#[cfg(feature = "serde")]
#[test]
fn deserialization_error_names_the_field() {
    for (json, expected) in [
        (r#"{}"#, "missing field `namespace`"),
        (r#"{ "namespace": "n", "lock_tll": "10s" }"#, "unknown field `lock_tll`"),
        (r#"{ "namespace": "n", "backoff": { "base": "1s" } }"#, "unknown field `base`"),
        (r#"{ "namespace": "n", "backoff": { "initial": "1h" } }"#, "initial ≤ max"),
        (r#"{ "namespace": "n", "lock_ttl": 30 }"#, r#"expected a duration such as "30s""#),
        (r#"{ "namespace": "n", "derivation_secret": "short" }"#, "`derivation_secret` must have"),
    ] {
        let error = parse(json).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

const MS: Duration = Duration::from_millis(1);

fn config() -> IdempotencyConfig {
    IdempotencyConfig::new("payments")
}

fn error(config: IdempotencyConfig) -> String {
    config.checked().err().expect("the settings are invalid").to_string()
}

#[test]
fn settings_can_be_read() {
    let backoff = Backoff::new(SECOND, HOUR).unwrap();
    let config = config()
        .with_lock_ttl(2 * SECOND)
        .with_max_hold(3 * SECOND)
        .with_backoff(backoff)
        .with_retention(4 * DAY)
        .with_attempt_retention(5 * DAY)
        .with_failed_retention(6 * DAY);
    assert_eq!((config.lock_ttl(), config.max_hold()), (2 * SECOND, 3 * SECOND));
    assert_eq!((config.backoff(), config.retention()), (backoff, 4 * DAY));
    assert_eq!((config.attempt_retention(), config.failed_retention()), (5 * DAY, 6 * DAY));
    assert_eq!(config.validate().unwrap().as_str(), "payments");
}

#[test]
fn settings_at_bounds_are_accepted() {
    for config in [
        config(),
        config().with_lock_ttl(500 * MS).with_max_hold(500 * MS).with_max_attempts(1),
        config().with_lock_ttl(HOUR).with_max_hold(DAY).with_max_attempts(65_535),
        config().with_retention(SECOND).with_failed_retention(SECOND),
        config().with_retention(MAX_RETENTION).with_failed_retention(MAX_RETENTION),
        config().with_attempt_retention(DAY + HOUR),
        config().with_attempt_retention(MAX_RETENTION),
    ] {
        assert!(config.clone().checked().is_ok(), "{config:?}");
    }
}

#[test]
fn error_names_setting_bounds_and_value() {
    let cases = [
        (config().with_lock_ttl(499 * MS), "`lock_ttl` must be between 500ms and 1 h, got 499ms"),
        (
            config().with_lock_ttl(HOUR + MS),
            "`lock_ttl` must be between 500ms and 1 h, got 3600.001s",
        ),
        (config().with_max_hold(499 * MS), "`max_hold` must be between 500ms and 24 h, got 499ms"),
        (
            config().with_max_hold(DAY + MS),
            "`max_hold` must be between 500ms and 24 h, got 86400.001s",
        ),
        (config().with_max_attempts(0), "`max_attempts` must be between 1 and 65535, got 0"),
        (
            config().with_max_attempts(65_536),
            "`max_attempts` must be between 1 and 65535, got 65536",
        ),
        (
            config().with_retention(999 * MS),
            "`retention` must be between 1s and 10 years, got 999ms",
        ),
        (
            config().with_failed_retention(999 * MS),
            "`failed_retention` must be between 1s and 10 years, got 999ms",
        ),
        (
            config().with_attempt_retention(DAY),
            "`attempt_retention` must be between 25 h and 10 years, got 86400s",
        ),
    ];
    for (config, expected) in cases {
        assert_eq!(error(config), expected);
    }
    for config in [
        config().with_retention(Duration::MAX),
        config().with_failed_retention(Duration::MAX),
        config().with_attempt_retention(Duration::MAX),
    ] {
        assert!(error(config).contains("and 10 years, got 18446744073709551615"));
    }
    assert!(error(IdempotencyConfig::new("Payments")).contains("Payments"));
}
