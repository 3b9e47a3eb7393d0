//! The checks of every change: what `cargo xtask test` runs.

use crate::binaries::{Binary, FORMAT};
use crate::guarantees::Guarantees;
use crate::install::install;
use crate::parallel::{in_parallel, into_inner, lock, processors};
use crate::progress::{Progress, cargo, cargo_with_deadline, now, root};
use crate::{Result, dependencies, features, package, supervise};
use std::fs;
use std::io;
use std::sync::Mutex;
use std::time::Duration;

/// The time limit of one test binary. Even on two cores with several times as much other load, the
/// slowest ends well before.
const TEST_BINARY_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// The time limit of all documentation tests together, including their build.
const DOCTESTS_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// The time limit of one example.
const EXAMPLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// The time limit of building all tests. Only a download that hangs reaches it.
const BUILD_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// The test binaries that take longest. They are run first, so that none is left alone at the end, and
/// with more threads, because their tests wait for the delays of consumer groups.
const LONG_TESTS: &[&str] = &["kafka", "everything"];

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

/// Builds the tests and runs several binaries at a time, because most wait for servers and timers.
/// Collects the lines that they printed. A failure does not keep the other binaries from running.
fn run_tests(progress: &Progress) -> Result<Vec<String>> {
    let mut build = cargo();
    build.args(["test", "--workspace", "--tests", "--no-run", "--message-format", FORMAT]);
    let (built, result) =
        progress.run_and_collect(build.args(FEATURES), BUILD_TIMEOUT, &mut io::sink())?;
    result?;
    let mut binaries = Binary::from_lines(&built);
    binaries.sort_by_key(|binary| !LONG_TESTS.contains(&&*binary.name));
    progress.step(&format!("running {} test binaries", binaries.len()));
    let results = Mutex::new((Vec::new(), Vec::new()));
    in_parallel(processors() + 1, &binaries, |binary| {
        let name = format!("{} of {}", binary.name, binary.package);
        let (start, mut output) = (now(), Vec::new());
        let mut command = binary.command();
        if LONG_TESTS.contains(&&*binary.name) {
            command.args(["--test-threads", &(2 * processors()).to_string()]);
        }
        let code = supervise::run(&mut command, TEST_BINARY_TIMEOUT, &name, &mut output)?;
        let output = String::from_utf8_lossy(&output);
        let (lines, failed) = &mut *lock(&results);
        println!("\n{name}, in {:.1} s:\n{output}", start.elapsed().as_secs_f64());
        lines.extend(output.lines().map(str::to_owned));
        if code != 0 {
            failed.push(name);
        }
        Ok(())
    })?;
    let (lines, failed) = into_inner(results);
    match failed.is_empty() {
        true => Ok(lines),
        false => Err(format!("tests failed, with the output above: {}", failed.join(", ")).into()),
    }
}

/// Runs the examples in the documentation. `rustdoc` starts them, and behaves differently if there
/// is a runner, so only all of them together have a deadline.
fn run_doctests(progress: &Progress) -> Result {
    let mut command = cargo();
    command.args(["test", "--workspace", "--doc"]).args(FEATURES).arg("--");
    let (_, result) =
        progress.run_and_collect(&mut command, DOCTESTS_TIMEOUT, &mut io::stdout())?;
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
