//! The archives of the published packages.

use crate::Result;
use crate::features::without_librdkafka;
use crate::progress::{Progress, cargo, root};
use cargo_metadata::Package;
use std::fs;
use std::process::Command;

/// The folder of the archives and of what is unpacked from them.
const PACKAGES_DIR: &str = "target/packages";

/// The manifest of this workspace, which ends with the profiles with which dependencies have been built.
const WORKSPACE: &str = include_str!("../../Cargo.toml");

/// Checks that each published package sets the fields that a registry shows, and that its archive
/// contains everything that its build needs.
///
/// `cargo package` alone would build each archive with all its dependencies. Instead, a workspace of
/// the unpacked archives is checked.
pub(crate) fn check(progress: &Progress, published: &[Package]) -> Result {
    for package in published {
        let Package { name, description, license, readme, documentation, rust_version, .. } =
            package;
        let texts = [description, license, documentation].map(Option::is_some);
        let lists = [&package.keywords, &package.categories].map(|list| !list.is_empty());
        if texts != [true; 3] || lists != [true; 2] || readme.is_none() || rust_version.is_none() {
            return Err(format!(
                "{name} needs a description, license, documentation, keywords, categories, readme and \
                 rust-version"
            )
            .into());
        }
    }
    let folder = root().join(PACKAGES_DIR);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    // The steps before have downloaded all dependencies.
    let mut command = cargo();
    command.args(["package", "--quiet", "--offline", "--allow-dirty", "--no-verify"]);
    command.args(["--target-dir", PACKAGES_DIR]);
    command.args(published.iter().flat_map(|package| ["-p", &package.name]));
    progress.run(&mut command)?;
    for package in published {
        let archive = folder.join("package").join(format!("{}.crate", unpacked_name(package)));
        // The files in an archive all have the same old time, with which cargo would not check them again.
        progress.run(Command::new("tar").arg("-xzmf").arg(archive).arg("-C").arg(&folder))?;
    }
    fs::write(folder.join("Cargo.toml"), manifest(published))?;
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let mut command = cargo();
    command.args(["check", "--quiet", "--offline", "--workspace", "--target-dir", "target"]);
    without_librdkafka(&mut command)?;
    progress.run(command.arg("--manifest-path").arg(folder.join("Cargo.toml")))
}

/// The manifest of a workspace in which the unpacked packages depend on each other.
fn manifest(published: &[Package]) -> String {
    let mut manifest =
        "[workspace]\nresolver = \"3\"\nmembers = [\"*-*\"]\n\n[patch.crates-io]\n".to_owned();
    for package in published {
        manifest += &format!("{} = {{ path = {:?} }}\n", package.name, unpacked_name(package));
    }
    let profiles = WORKSPACE.find("\n[profile.").expect("the workspace has profiles");
    manifest + &WORKSPACE[profiles..]
}

/// The name of the folder in a package's archive, and of the archive without its extension.
fn unpacked_name(package: &Package) -> String {
    format!("{}-{}", package.name, package.version)
}
