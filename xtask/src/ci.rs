use crate::guarantees::Guarantees;
use crate::install::install;
use crate::progress::{Progress, cargo, cargo_with_deadline, root};
use crate::{Result, dependencies, features, package};
use std::fs;
use std::time::Duration;

/// The time limit of one test binary. Even on two cores with several times as much other load, the
/// slowest ends well before.
const TEST_BINARY_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// The time limit of all documentation tests together, including their build.
const DOCTESTS_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// The time limit of one example.
const EXAMPLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// The time limit of building and running all tests. Only a problem outside the tests, such as a
/// download that hangs, reaches it.
const TESTS_TIMEOUT: Duration = Duration::from_secs(2 * 60 * 60);

/// What the tests need in addition: brokers with TLS. No crate of the workspace enables this by default,
/// so that the examples can be run without OpenSSL's headers.
const FEATURES: [&str; 2] = ["--features", "campanile-tests/kafka-tls"];

/// Runs all checks, those that fail soonest first.
pub(crate) fn test(progress: &Progress) -> Result {
    let result = run_phases(progress);
    progress.show_phases();
    result
}

fn run_phases(progress: &Progress) -> Result {
    progress.phase("install", || install(progress))?;
    progress.phase("format", || progress.run(cargo().args(["fmt", "--all", "--check"])))?;
    let guarantees = Guarantees::read()?;
    let metadata = progress.phase("dependencies", || dependencies::check(progress))?;
    progress.phase("clippy", || {
        progress.run(
            cargo()
                .args(["clippy", "--workspace", "--all-targets"])
                .args(FEATURES)
                .args(["--", "-D", "warnings"]),
        )
    })?;
    progress.phase("documentation", || {
        progress.run(
            cargo()
                .args(["doc", "--workspace", "--no-deps"])
                .args(FEATURES)
                .env("RUSTDOCFLAGS", "-D warnings"),
        )
    })?;
    let output = progress.phase("tests", || run_tests(progress))?;
    guarantees.check(&output)?;
    progress.phase("documentation's tests", || run_doctests(progress))?;
    progress.phase("examples", || run_examples(progress))?;
    progress.phase("features", || features::check(progress, &metadata))?;
    progress.phase("packages", || package::check(progress, &metadata))?;
    guarantees.show(progress);
    Ok(())
}

/// Runs all test binaries, and collects the lines that they printed.
fn run_tests(progress: &Progress) -> Result<Vec<String>> {
    let mut command = cargo_with_deadline(TEST_BINARY_TIMEOUT)?;
    let (output, result) = progress.run_and_collect(
        command.args(["test", "--workspace", "--tests"]).args(FEATURES),
        TESTS_TIMEOUT,
    )?;
    result?;
    Ok(output)
}

/// Runs the examples in the documentation. `rustdoc` starts them, and behaves differently if there
/// is a runner, so only all of them together have a deadline.
fn run_doctests(progress: &Progress) -> Result {
    let mut command = cargo();
    command.args(["test", "--workspace", "--doc"]).args(FEATURES).arg("--");
    let (_, result) = progress.run_and_collect(&mut command, DOCTESTS_TIMEOUT)?;
    result
}

fn run_examples(progress: &Progress) -> Result {
    // Also build the examples that wait for input or for Ctrl-C and are not run here.
    progress.run(cargo().args(["build", "--quiet", "--workspace", "--examples"]))?;
    for name in example_names()? {
        let mut command = cargo_with_deadline(EXAMPLE_TIMEOUT)?;
        command.args(["run", "--quiet", "-p", "campanile-examples", "--example", &name]);
        progress.run(&mut command)?;
    }
    Ok(())
}

/// Lists the names of all examples. Reads the files and not the manifest, so that a file that is
/// missing from the manifest fails.
fn example_names() -> Result<Vec<String>> {
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
