//! The archives of the published packages.

use std::fs;
use std::process::Command;

use crate::Result;
use crate::metadata::{Metadata, Package};
use crate::progress::{Progress, cargo, root};

/// The folder of the archives and of what is unpacked from them.
const PACKAGES_DIR: &str = "target/packages";

/// The profile of this workspace, with which dependencies have been built.
const PROFILE: &str = r#"
[profile.dev]
debug = "line-tables-only"

[profile.dev.package."*"]
debug = false
"#;

/// Checks that each published package sets the fields that a registry shows, and that its archive
/// contains everything that its build needs.
///
/// `cargo package` alone would build each archive with all its dependencies. Instead, a workspace of
/// the unpacked archives is checked.
pub(crate) fn check(progress: &Progress, metadata: &Metadata) -> Result {
    let problems: Vec<String> = metadata
        .published()
        .filter(|package| !package.missing.is_empty())
        .map(|package| format!("{} has no {}", package.name, package.missing.join(", no ")))
        .collect();
    if !problems.is_empty() {
        return Err(problems.join("; ").into());
    }
    let folder = root().join(PACKAGES_DIR);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    // The steps before have downloaded all dependencies.
    let mut command = cargo();
    command.args(["package", "--quiet", "--offline", "--allow-dirty", "--no-verify"]);
    command.args(["--target-dir", PACKAGES_DIR]);
    for package in metadata.published() {
        command.args(["-p", &package.name]);
    }
    progress.run(&mut command)?;
    for package in metadata.published() {
        let archive = folder.join("package").join(format!("{}.crate", unpacked_name(package)));
        // The files in an archive all have the same old time, with which cargo would not check them again.
        progress.run(Command::new("tar").arg("-xzmf").arg(archive).arg("-C").arg(&folder))?;
    }
    fs::write(folder.join("Cargo.toml"), manifest(metadata))?;
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    progress.run(
        cargo()
            .args(["check", "--quiet", "--offline", "--workspace", "--target-dir", "target"])
            .arg("--manifest-path")
            .arg(folder.join("Cargo.toml")),
    )
}

/// The manifest of a workspace in which the unpacked packages depend on each other.
fn manifest(metadata: &Metadata) -> String {
    let mut manifest =
        "[workspace]\nresolver = \"3\"\nmembers = [\"*-*\"]\n\n[patch.crates-io]\n".to_owned();
    for package in metadata.published() {
        manifest += &format!("{} = {{ path = {:?} }}\n", package.name, unpacked_name(package));
    }
    manifest + PROFILE
}

/// The name of the folder in a package's archive, and of the archive without its extension.
fn unpacked_name(package: &Package) -> String {
    format!("{}-{}", package.name, package.version)
}
