//! Fuzz targets: what operators write. `cargo xtask fuzz` explores them, and as tests they repeat what
//! it has found.

use campanile_admin::StoreConfig;
use campanile_admin::doctor::Deployment;
use campanile_admin::explain::KeySource;
use campanile_core::{KeyExtractor, Record};

/// A configuration file is read, or refused with what is wrong.
#[test]
fn deployment() {
    bolero::check!(name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/deployment"))
        .for_each(|bytes: &[u8]| {
            let Ok(text) = str::from_utf8(bytes) else { return };
            match Deployment::from_toml(text) {
                Ok(deployment) => assert!(!format!("{deployment:?}").is_empty()),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        });
}

/// The first byte selects the kind of store. The last line has the hosts of the URL and what follows them;
/// the lines above it surround the password. What is shown does not depend on the password.
#[test]
fn store_url() {
    const SCHEMES: &[&str] = &[
        "redis",
        "rediss",
        "redis+unix",
        "redis+sentinel",
        "redis+cluster",
        "postgres",
        "postgresql",
        "mysql",
    ];
    bolero::check!(name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/store_url"))
        .for_each(|bytes: &[u8]| {
            let Ok([selector, rest @ ..]) = str::from_utf8(bytes).map(str::as_bytes) else {
                return;
            };
            let scheme = SCHEMES[usize::from(*selector) % SCHEMES.len()];
            let Ok(rest) = str::from_utf8(rest) else { return };
            let (surroundings, hosts) = rest.rsplit_once('\n').unwrap_or(("", rest));
            let (before, after) = surroundings.split_once('\n').unwrap_or((surroundings, ""));
            let [shown, other] = ["s3cret", "pa55ed"].map(|password| {
                let url = format!("{scheme}://app:{before}{password}{after}@{hosts}");
                match url.parse::<StoreConfig>() {
                    Ok(config) => format!("{config:?} {config:#?}"),
                    Err(error) => error.to_string(),
                }
            });
            assert_eq!(shown, other);
        });
}

/// The first byte is the length of a pointer into the payload, which follows it. What is found is the
/// value of the payload, and errors do not contain it.
#[test]
fn key_source() {
    bolero::check!(name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/key_source"))
        .for_each(|bytes: &[u8]| {
            let [length, rest @ ..] = bytes else { return };
            let (pointer, payload) = rest.split_at(usize::from(*length).min(rest.len()));
            let Ok(pointer) = str::from_utf8(pointer) else { return };
            let record = Record::builder("payments", 3, 42).payload(payload.to_vec()).build();
            let source = KeySource::JsonPointer(pointer.into());
            let value: Option<serde_json::Value> = serde_json::from_slice(payload).ok();
            let found = value.as_ref().map(|value| value.pointer(pointer));
            match source.extract(&record) {
                Ok(Some(key)) => {
                    let value = found.unwrap().unwrap();
                    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    assert_eq!(key.as_bytes(), text.as_bytes());
                }
                Ok(None) => {
                    let is_missing = |value: &serde_json::Value| value.is_null() || value == "";
                    assert!(found.unwrap().is_none_or(is_missing));
                }
                Err(error) => {
                    let text = error.to_string();
                    let is_place = text.starts_with("the payload is no JSON: line ");
                    assert!(is_place || text.contains(&format!(" {pointer} ")), "{text}");
                    assert_eq!(is_place, found.is_none());
                }
            }
        });
}
