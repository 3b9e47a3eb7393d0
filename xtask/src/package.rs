use crate::Result;
use crate::metadata::Metadata;
use crate::progress::{Progress, cargo};

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
    let mut command = cargo();
    // Whatever it needs was downloaded by the steps before.
    command.args(["package", "--quiet", "--offline", "--allow-dirty"]);
    for package in metadata.published() {
        command.args(["-p", &package.name]);
    }
    progress.run(&mut command)
}
