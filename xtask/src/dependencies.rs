//! Which dependencies are accepted.

use crate::Result;
use crate::license::is_allowed;
use crate::metadata::{Metadata, Package};
use crate::progress::Progress;
use std::collections::{BTreeMap, BTreeSet};

/// The only registry that is accepted.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Checks every package that is built here or for a user, on any platform:
///
/// * Its license, according to its manifest, is one that we accept. Licenses of C code inside a
///   package, such as librdkafka's, are not checked.
/// * It comes from crates.io.
/// * If it is built for users, its `rust-version` is not newer than ours. A package without a
///   `rust-version` is not checked, and nothing is built with the old compiler here. That our own
///   code uses only an old enough part of the standard library is checked by clippy's
///   `incompatible_msrv`.
///
/// Advisories are not checked, because that needs a database of them. Packages that are built in
/// several versions are only listed, because most of them are not ours to decide.
///
/// `cargo-deny` does this and more, but depends on a git client, an HTTP client and TLS, which
/// would be built with full link-time optimization before the first test runs.
pub(crate) fn check(progress: &Progress) -> Result<Metadata> {
    let metadata = Metadata::read()?;
    let problems = problems(&metadata);
    if !problems.is_empty() {
        return Err(format!("dependencies:\n  {}", problems.join("\n  ")).into());
    }
    progress.step(&format!(
        "{} packages have an accepted license, source and rust-version; several versions for users: {}",
        metadata.packages().count(),
        duplicates(&metadata).join(", ")
    ));
    Ok(metadata)
}

fn problems(metadata: &Metadata) -> Vec<String> {
    let mut problems: Vec<String> = metadata.packages().filter_map(problem).collect();
    problems.extend(rust_version_problems(metadata));
    problems
}

fn problem(package: &Package) -> Option<String> {
    let Package { name, version, source, license, .. } = package;
    if source.as_ref().is_some_and(|source| source != CRATES_IO) {
        return Some(format!("{name} {version} does not come from crates.io"));
    }
    match license {
        None => Some(format!("{name} {version} has no license")),
        Some(license) if is_allowed(license) => None,
        Some(license) => Some(format!("{name} {version} has the license {license}")),
    }
}

/// Lists the packages that are built for users and need a newer compiler than ours do.
fn rust_version_problems(metadata: &Metadata) -> Vec<String> {
    let own_versions = metadata.published().filter_map(|package| package.rust_version.as_deref());
    let Some(oldest) = own_versions.map(version_numbers).min() else { return Vec::new() };
    let newer = metadata.built_for_users().filter_map(|package| {
        let version = package.rust_version.as_deref()?;
        let is_newer = version_numbers(version) > oldest;
        is_newer.then(|| format!("{} {} needs Rust {version}", package.name, package.version))
    });
    newer.collect()
}

/// Parses a version. `1.88` and `1.88.0` are equal.
fn version_numbers(version: &str) -> [u64; 3] {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(u64::MAX));
    [(); 3].map(|()| parts.next().unwrap_or_default())
}

/// Lists the packages that are built for users in more than one version.
fn duplicates(metadata: &Metadata) -> Vec<String> {
    let mut versions = BTreeMap::<&str, BTreeSet<&str>>::new();
    for package in metadata.built_for_users() {
        versions.entry(&package.name).or_default().insert(&package.version);
    }
    let several = versions.into_iter().filter(|(_, versions)| versions.len() > 1);
    several.map(|(name, versions)| format!("{name} ({})", versions.len())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `lib` depends on `used`, and for its tests on `tester`.
    const JSON: &str = r#"{
        "packages": [
            {"id": "lib", "name": "lib", "version": "0.1.0", "source": null, "license": "MIT",
             "publish": null, "rust_version": "1.88", "features": {"default": [], "tls": []},
             "manifest_path": "lib/Cargo.toml"},
            {"id": "used", "name": "used", "version": "1.0.0", "license": "MIT/Apache-2.0",
             "source": "registry+https://github.com/rust-lang/crates.io-index",
             "publish": null, "rust_version": "1.88.0", "features": {},
             "manifest_path": "Cargo.toml"},
            {"id": "tester", "name": "tester", "version": "2.0.0", "license": "MIT",
             "source": "registry+https://github.com/rust-lang/crates.io-index",
             "publish": null, "rust_version": "1.90", "features": {},
             "manifest_path": "Cargo.toml"}
        ],
        "resolve": {"nodes": [
            {"id": "lib", "deps": [
                {"pkg": "used", "dep_kinds": [{"kind": null}, {"kind": "dev"}]},
                {"pkg": "tester", "dep_kinds": [{"kind": "dev"}]}
            ]},
            {"id": "used", "deps": []},
            {"id": "tester", "deps": []}
        ]}
    }"#;

    fn problems_in(json: &str) -> String {
        problems(&Metadata::parse(json.as_bytes()).unwrap()).join("\n")
    }

    #[test]
    fn newer_compiler_is_accepted_only_for_tests() {
        assert_eq!(problems_in(JSON), "");
        let newer = JSON.replace("1.88.0", "1.89");
        assert_eq!(problems_in(&newer), "used 1.0.0 needs Rust 1.89");
    }

    #[test]
    fn unaccepted_license_is_a_problem() {
        let other = JSON.replace("MIT/Apache-2.0", "GPL-3.0-only");
        assert_eq!(problems_in(&other), "used 1.0.0 has the license GPL-3.0-only");
        let none = JSON.replace(r#""license": "MIT/Apache-2.0""#, r#""license": null"#);
        assert_eq!(problems_in(&none), "used 1.0.0 has no license");
    }

    #[test]
    fn other_source_is_a_problem() {
        let other = JSON.replace("registry+https://github.com/rust-lang/crates.io-index", "git+x");
        assert!(problems_in(&other).contains("tester 2.0.0 does not come from crates.io"));
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(version_numbers("1.88"), version_numbers("1.88.0"));
        assert!(version_numbers("1.100") > version_numbers("1.88"));
    }
}
