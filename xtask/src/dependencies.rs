//! Which dependencies are accepted, and which packages are published.

use crate::Result;
use crate::progress::{Progress, root};
use cargo_metadata::semver::Version;
use cargo_metadata::{CargoOpt, DependencyKind, Metadata, MetadataCommand, Package, PackageId};
use spdx::{Expression, ParseMode};
use std::collections::{BTreeMap, BTreeSet};

/// The accepted licenses are those of this file. None of them requires more of a user than a notice.
const DENY: &str = include_str!("../../deny.toml");

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
/// cargo-deny does this and more, such as the advisories, but depends on a git client, an HTTP client and TLS,
/// which would be built with full link-time optimization before the first test runs.
///
/// Returns the published packages.
pub(crate) fn check(progress: &Progress) -> Result<Vec<Package>> {
    let mut command = MetadataCommand::new();
    command.current_dir(root()).features(CargoOpt::AllFeatures).other_options(["--locked".into()]);
    let metadata = command.exec()?;
    let problems = problems(&metadata);
    if !problems.is_empty() {
        return Err(format!("dependencies:\n  {}", problems.join("\n  ")).into());
    }
    let count = metadata.packages.len();
    progress.step(&format!("{count} packages have an accepted license, source and rust-version"));
    Ok(published(&metadata).cloned().collect())
}

/// The packages of this workspace that are published. `publish = false` is an empty list of registries.
fn published(metadata: &Metadata) -> impl Iterator<Item = &Package> {
    let is_published =
        |package: &&Package| package.publish.as_ref().is_none_or(|to| !to.is_empty());
    metadata.workspace_packages().into_iter().filter(is_published)
}

fn problems(metadata: &Metadata) -> Vec<String> {
    let users = built_for_users(metadata);
    let oldest = published(metadata).filter_map(|package| package.rust_version.as_ref()).min();
    let mut problems = Vec::new();
    for package in &metadata.packages {
        let Package { name, version, source, license, rust_version, .. } = package;
        if source.as_ref().is_some_and(|source| !source.is_crates_io()) {
            problems.push(format!("{name} {version} does not come from crates.io"));
        }
        if !license.as_deref().is_some_and(is_allowed) {
            let license = license.as_deref().unwrap_or("none");
            problems.push(format!("{name} {version} has the license {license}"));
        }
        let needs_newer = rust_version.as_ref().zip(oldest).is_some_and(|(its, ours)| its > ours);
        if users.contains(&package.id) && needs_newer {
            let needed = rust_version.as_ref().map(Version::to_string).unwrap_or_default();
            problems.push(format!("{name} {version} needs Rust {needed}"));
        }
    }
    problems
}

/// Whether a package with this SPDX expression may be used. An exception (`WITH`) only adds permissions.
fn is_allowed(expression: &str) -> bool {
    let list = DENY.split_once("\nallow = [\n").and_then(|(_, rest)| rest.split_once("\n]"));
    let (list, _) = list.expect("deny.toml lists the accepted licenses");
    let is_listed = |name: &str| list.lines().any(|line| line.trim() == format!("\"{name}\","));
    // Also the `/` of old manifests.
    Expression::parse_mode(expression, ParseMode::LAX).is_ok_and(|expression| {
        expression.evaluate(|required| required.license.id().is_some_and(|id| is_listed(id.name)))
    })
}

/// All packages that are built for a user of the published packages, including these.
fn built_for_users(metadata: &Metadata) -> BTreeSet<&PackageId> {
    let nodes = metadata.resolve.iter().flat_map(|resolve| &resolve.nodes);
    let nodes: BTreeMap<_, _> = nodes.map(|node| (&node.id, &node.deps)).collect();
    let mut todo: Vec<_> = published(metadata).map(|package| &package.id).collect();
    let mut found = BTreeSet::new();
    while let Some(id) = todo.pop() {
        if found.insert(id) {
            let used = nodes.get(id).into_iter().copied().flatten().filter(|dependency| {
                dependency.dep_kinds.iter().any(|kind| kind.kind != DependencyKind::Development)
            });
            todo.extend(used.map(|dependency| &dependency.pkg));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

    fn package(name: &str, source: Option<&str>, license: &str, rust_version: &str) -> Value {
        json!({
            "id": name, "name": name, "version": "1.0.0", "source": source, "license": license,
            "rust_version": rust_version, "manifest_path": "Cargo.toml", "features": {},
            "dependencies": [], "targets": [],
        })
    }

    /// The problems where `lib` depends on the package `used`, and for its tests on `tester`.
    fn problems_with(used: Value) -> Vec<String> {
        let kind = |kind: Option<&str>| json!([{ "kind": kind, "target": null }]);
        let deps = json!([
            { "name": "used", "pkg": "used", "dep_kinds": kind(None) },
            { "name": "tester", "pkg": "tester", "dep_kinds": kind(Some("dev")) },
        ]);
        let node = |id: &str, deps: Value| json!({ "id": id, "deps": deps, "dependencies": [] });
        let metadata = json!({
            "packages": [
                package("lib", None, "MIT", "1.88"), used,
                package("tester", Some(CRATES_IO), "MIT", "1.90"),
            ],
            "workspace_members": ["lib"], "workspace_root": "/", "target_directory": "/target",
            "resolve": { "root": null, "nodes": [
                node("lib", deps), node("used", json!([])), node("tester", json!([])),
            ] },
            "version": 1,
        });
        problems(&serde_json::from_value(metadata).unwrap())
    }

    #[test]
    fn newer_compiler_is_accepted_only_for_tests() {
        let used = |rust_version| package("used", Some(CRATES_IO), "MIT", rust_version);
        assert_eq!(problems_with(used("1.88.0")), [""; 0]);
        assert_eq!(problems_with(used("1.89")), ["used 1.0.0 needs Rust 1.89.0"]);
    }

    #[test]
    fn other_license_or_source_is_a_problem() {
        let used = package("used", Some("git+https://example.com/used"), "GPL-3.0-only", "1.80");
        assert_eq!(
            problems_with(used),
            ["used 1.0.0 does not come from crates.io", "used 1.0.0 has the license GPL-3.0-only"]
        );
    }

    #[test]
    fn expression_is_allowed_if_a_listed_license_suffices() {
        for expression in
            ["MIT/GPL-2.0", "Apache-2.0 WITH LLVM-exception", "(MIT OR GPL-2.0) AND ISC"]
        {
            assert!(is_allowed(expression), "{expression}");
        }
        for expression in ["GPL-2.0", "", "MIT AND GPL-2.0", "MIT OR", "LicenseRef-MIT"] {
            assert!(!is_allowed(expression), "{expression}");
        }
    }
}
