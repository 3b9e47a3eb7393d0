//! Each published package, built with each of its features.

use crate::Result;
use crate::metadata::{Metadata, Package};
use crate::progress::{Progress, cargo};
use std::path::Path;
use std::{fs, io};

/// Checks that each published package builds by itself and without warnings: without features, with
/// each feature of its code alone, with the default features and with all features. The other checks
/// build the whole workspace at once, which gives each package the features that any other package
/// enables, including those of its dependencies.
///
/// A feature that the code does not name only enables features of dependencies. A dependency that is
/// in this workspace is checked with them by itself.
///
/// The first run builds librdkafka once for each set of its features, which takes minutes; later
/// runs reuse these builds. Pairs of features are not checked, because no code depends on the
/// absence of a feature that another feature needs.
pub(crate) fn check(progress: &Progress, metadata: &Metadata) -> Result {
    for package in metadata.published() {
        let code = code(&package.manifest.with_file_name("src"))?;
        for features in combinations(package, &code) {
            let mut command = cargo();
            command.args(["clippy", "--quiet", "-p", &package.name]).args(features);
            progress.run(command.args(["--", "-D", "warnings"]))?;
        }
    }
    Ok(())
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

/// Lists the arguments of each combination.
fn combinations<'a>(package: &'a Package, code: &str) -> Vec<Vec<&'a str>> {
    let mut combinations = vec![vec!["--no-default-features"]];
    if package.features.is_empty() {
        return combinations;
    }
    let is_in_code = |name: &&String| code.contains(&format!("feature = \"{name}\""));
    let names = package.features.iter().filter(is_in_code);
    combinations.extend(names.map(|name| vec!["--no-default-features", "--features", name]));
    combinations.extend([vec![], vec!["--all-features"]]);
    combinations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined_combinations(features: &[&str], code: &str) -> Vec<String> {
        let features = features.iter().map(|&name| name.to_owned()).collect();
        let package = Package { features, ..Package::default() };
        combinations(&package, code).iter().map(|args| args.join(" ")).collect()
    }

    #[test]
    fn each_feature_of_the_code_is_built_alone_and_with_all_others() {
        assert_eq!(joined_combinations(&[], ""), ["--no-default-features"]);
        let code = r#"#[cfg(feature = "tls")] mod tls; #[cfg(not(feature = "zstd"))] mod plain;"#;
        assert_eq!(
            joined_combinations(&["tls", "tls-native", "zstd"], code),
            [
                "--no-default-features",
                "--no-default-features --features tls",
                "--no-default-features --features zstd",
                "",
                "--all-features",
            ]
        );
    }
}
