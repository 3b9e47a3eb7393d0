//! Each published package, built with each of its features.

use crate::Result;
use crate::progress::{Progress, cargo};
use cargo_metadata::Package;
use std::path::Path;
use std::process::Command;
use std::{fs, io};

/// Checks that each published package builds by itself and without warnings: without features, and with
/// each feature of its code alone. So do the examples, as a reader builds them. The other checks build the
/// whole workspace at once, with nearly all features: that gives each package the features that any other
/// package enables, including those of its dependencies.
///
/// A feature that the code does not name only enables features of dependencies. A dependency that is
/// in this workspace is checked with them by itself. Sets of features are not checked, because no code
/// depends on the absence of a feature that another feature needs. cargo-hack would make the same runs, and
/// would have to be built first.
pub(crate) fn check(progress: &Progress, published: &[Package]) -> Result {
    let mut examples = cargo();
    examples.args(["clippy", "--quiet", "-p", "campanile-examples", "--examples"]);
    without_librdkafka(&mut examples)?;
    progress.run(examples.args(["--", "-D", "warnings"]))?;
    for package in published {
        let src = package.manifest_path.with_file_name("src");
        for feature in features(package, &code(src.as_std_path())?) {
            let mut command = cargo();
            command.args(["clippy", "--quiet", "-p", &package.name, "--no-default-features"]);
            command.args(["--features", feature]);
            // With TLS it has been built for the tests.
            if (&**package.name, feature) != ("campanile-kafka", "tls") {
                without_librdkafka(&mut command)?;
            }
            progress.run(command.args(["--", "-D", "warnings"]))?;
        }
    }
    Ok(())
}

/// Lets cargo check a package without building librdkafka first, which takes a minute for each set of its
/// features and is needed only to link.
pub(crate) fn without_librdkafka(cargo: &mut Command) -> Result {
    cargo.args(["--config", &format!("target.{}.rdkafka.rustc-link-lib = []", host()?)]);
    Ok(())
}

/// The platform of the compiler.
pub(crate) fn host() -> Result<String> {
    let version = Command::new("rustc").arg("-vV").output()?;
    let version = String::from_utf8(version.stdout)?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.ok_or("`rustc -vV` names no host")?.to_owned())
}

/// Reads all Rust files in a folder.
fn code(folder: &Path) -> io::Result<String> {
    let mut code = String::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            code += &self::code(&path)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            code += &fs::read_to_string(path)?;
        }
    }
    Ok(code)
}

/// Lists the features to check: none, and each that the code names.
fn features<'a>(package: &'a Package, code: &str) -> Vec<&'a str> {
    let names = package.features.keys().map(String::as_str);
    let is_in_code = |name: &&str| code.contains(&format!("feature = \"{name}\""));
    std::iter::once("").chain(names.filter(is_in_code)).collect()
}
