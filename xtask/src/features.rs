use crate::Result;
use crate::metadata::{Metadata, Package};
use crate::progress::{Progress, cargo};

/// Checks that each published package builds by itself and without warnings: without features, with
/// each feature alone, with the default features and with all features. The other checks
/// build the whole workspace at once, which gives each package the features that any other package
/// enables, including those of its dependencies.
///
/// The first run builds librdkafka once for each set of its features, which takes minutes; later
/// runs reuse these builds. Pairs of features are not checked, because no code depends on the
/// absence of a feature that another feature needs.
pub(crate) fn check(progress: &Progress, metadata: &Metadata) -> Result {
    for package in metadata.published() {
        for features in combinations(package) {
            let mut command = cargo();
            command.args(["clippy", "--quiet", "-p", &package.name]).args(features);
            progress.run(command.args(["--", "-D", "warnings"]))?;
        }
    }
    Ok(())
}

/// Lists the arguments of each combination.
fn combinations(package: &Package) -> Vec<Vec<&str>> {
    let mut combinations = vec![vec!["--no-default-features"]];
    if package.features.is_empty() {
        return combinations;
    }
    let names = package.features.iter();
    combinations.extend(names.map(|name| vec!["--no-default-features", "--features", name]));
    combinations.extend([vec![], vec!["--all-features"]]);
    combinations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined_combinations(features: &[&str]) -> Vec<String> {
        let features = features.iter().map(|&name| name.to_owned()).collect();
        let package = Package { features, ..Package::default() };
        combinations(&package).iter().map(|args| args.join(" ")).collect()
    }

    #[test]
    fn each_feature_is_built_alone_and_with_all_others() {
        assert_eq!(joined_combinations(&[]), ["--no-default-features"]);
        assert_eq!(
            joined_combinations(&["tls", "zstd"]),
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
