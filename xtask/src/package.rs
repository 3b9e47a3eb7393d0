use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::Result;
use crate::metadata::Metadata;
use crate::progress::{Progress, cargo};

/// Where packages are built.
const BUILT: &str = "target/packages";

/// Checks that each published package says what a registry shows, and that its archive contains all
/// that it needs to be built.
pub(crate) fn check(progress: &Progress, metadata: &Metadata) -> Result {
    let problems: Vec<String> = metadata
        .published()
        .filter(|package| !package.missing.is_empty())
        .map(|package| format!("{} has no {}", package.name, package.missing.join(", no ")))
        .collect();
    if !problems.is_empty() {
        return Err(problems.join("; ").into());
    }
    forget_former(metadata)?;
    let mut command = cargo();
    // Whatever it needs was downloaded by the steps before.
    command.args(["package", "--quiet", "--offline", "--allow-dirty", "--target-dir", BUILT]);
    for package in metadata.published() {
        command.args(["-p", &package.name]);
    }
    progress.run(&mut command)
}

/// Removes what cargo has unpacked and built of former archives of these packages. It takes a package of
/// the same version for the same, and would build each one with the others as they were when they were
/// first packaged.
fn forget_former(metadata: &Metadata) -> Result {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".cargo")));
    let unpacked = home.map(|home| home.join("registry/src"));
    for registry in unpacked.as_deref().map(folders).into_iter().flatten() {
        // A registry without a host is a directory: the one that cargo makes of the archives.
        if registry.file_name().is_some_and(|name| name.to_string_lossy().starts_with('-')) {
            remove(folders(&registry), metadata)?;
        }
    }
    remove(folders(&Path::new(BUILT).join("debug/.fingerprint")), metadata)
}

/// Removes the folders that are named after the published packages.
fn remove(folders: Vec<PathBuf>, metadata: &Metadata) -> Result {
    for folder in folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        if metadata.published().any(|package| name.starts_with(&*package.name)) {
            fs::remove_dir_all(&folder)?;
        }
    }
    Ok(())
}

/// What is in a folder; nothing, if there is none.
fn folders(of: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(of).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}
