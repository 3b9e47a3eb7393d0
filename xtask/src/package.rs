use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::Result;
use crate::metadata::Metadata;
use crate::progress::{Progress, cargo};

/// The folder in which packages are built.
const PACKAGES_DIR: &str = "target/packages";

/// Checks that each published package sets the fields that a registry shows, and that its archive
/// contains everything that its build needs.
pub(crate) fn check(progress: &Progress, metadata: &Metadata) -> Result {
    let problems: Vec<String> = metadata
        .published()
        .filter(|package| !package.missing.is_empty())
        .map(|package| format!("{} has no {}", package.name, package.missing.join(", no ")))
        .collect();
    if !problems.is_empty() {
        return Err(problems.join("; ").into());
    }
    remove_stale(metadata)?;
    let mut command = cargo();
    // The steps before have downloaded all dependencies.
    command.args([
        "package",
        "--quiet",
        "--offline",
        "--allow-dirty",
        "--target-dir",
        PACKAGES_DIR,
    ]);
    for package in metadata.published() {
        command.args(["-p", &package.name]);
    }
    progress.run(&mut command)
}

/// Removes everything that cargo has unpacked and built of earlier archives of these packages.
/// Cargo does not distinguish packages of the same version, and would build each package with the
/// first archives of the others.
fn remove_stale(metadata: &Metadata) -> Result {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".cargo")));
    let unpacked = home.map(|home| home.join("registry/src"));
    for registry in unpacked.as_deref().map(folders).into_iter().flatten() {
        // A registry without a host is a directory: the one that cargo creates from the archives.
        if registry.file_name().is_some_and(|name| name.to_string_lossy().starts_with('-')) {
            remove_published(folders(&registry), metadata)?;
        }
    }
    remove_published(folders(&Path::new(PACKAGES_DIR).join("debug/.fingerprint")), metadata)
}

/// Removes the folders that are named after the published packages.
fn remove_published(folders: Vec<PathBuf>, metadata: &Metadata) -> Result {
    for folder in folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        if metadata.published().any(|package| name.starts_with(&*package.name)) {
            fs::remove_dir_all(&folder)?;
        }
    }
    Ok(())
}

/// Lists the entries of a folder; none if the folder does not exist.
fn folders(of: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(of).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}
