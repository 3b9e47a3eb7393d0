use crate::install::install;
use crate::progress::{Progress, cargo, cargo_with_deadline, root};
use crate::promises::Promises;
use crate::{Result, dependencies, features, package};
use std::fs;
use std::time::Duration;

/// How long one test binary may take. The slowest ends well before that on two cores that have several
/// times as much else to do.
const TEST_BINARY: Duration = Duration::from_secs(10 * 60);

/// How long the tests of the documentation may take, all of them; they are built meanwhile.
const DOCTESTS: Duration = Duration::from_secs(15 * 60);

/// How long one example may take.
const EXAMPLE: Duration = Duration::from_secs(5 * 60);

/// How long the build of all tests and their run may take. Only what is not a test's fault, such as a
/// download that hangs, gets here.
const TESTS: Duration = Duration::from_secs(2 * 60 * 60);

/// All that must hold, in the order in which it fails soonest.
pub(crate) fn test(progress: &Progress) -> Result {
    let result = phases(progress);
    progress.show_phases();
    result
}

fn phases(progress: &Progress) -> Result {
    progress.phase("install", || install(progress))?;
    progress.phase("format", || progress.run(cargo().args(["fmt", "--all", "--check"])))?;
    let metadata = progress.phase("dependencies", || dependencies::check(progress))?;
    progress.phase("clippy", || {
        progress.run(
            cargo().args(["clippy", "--workspace", "--all-targets"]).args(["--", "-D", "warnings"]),
        )
    })?;
    progress.phase("documentation", || {
        progress.run(
            cargo().args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"),
        )
    })?;
    let promises = Promises::read()?;
    let output = progress.phase("tests", || tests(progress))?;
    promises.check(&output)?;
    progress.phase("documentation's tests", || doctests(progress))?;
    progress.phase("examples", || examples(progress))?;
    progress.phase("features", || features::check(progress, &metadata))?;
    progress.phase("packages", || package::check(progress, &metadata))?;
    promises.show(progress);
    Ok(())
}

/// Runs all test binaries. Returns what they have printed.
fn tests(progress: &Progress) -> Result<Vec<String>> {
    let mut command = cargo_with_deadline(TEST_BINARY)?;
    let (output, ended) =
        progress.run_and_collect(command.args(["test", "--workspace", "--tests"]), TESTS)?;
    ended?;
    Ok(output)
}

/// Runs the examples in the documentation. `rustdoc` starts them, and differently where there is a
/// runner, so that only all together have a deadline.
fn doctests(progress: &Progress) -> Result {
    let mut command = cargo();
    command.args(["test", "--workspace", "--doc", "--"]);
    let (_, ended) = progress.run_and_collect(&mut command, DOCTESTS)?;
    ended
}

fn examples(progress: &Progress) -> Result {
    // Also those that wait for input or for Ctrl-C, and are not run here.
    progress.run(cargo().args(["build", "--quiet", "--workspace", "--examples"]))?;
    for name in names()? {
        let mut command = cargo_with_deadline(EXAMPLE)?;
        command.args(["run", "--quiet", "-p", "campanile-examples", "--example", &name]);
        progress.run(&mut command)?;
    }
    Ok(())
}

/// The names of all examples. The files are looked at, and not the manifest: a file that the
/// manifest has forgotten fails.
fn names() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root().join("examples"))? {
        let path = entry?.path();
        let is_file = path.extension().is_some_and(|extension| extension == "rs");
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if name != "lib" && (is_file || path.join("main.rs").is_file()) {
            names.push(name.into_owned());
        }
    }
    names.sort();
    Ok(names)
}
