//! The checks of every change: what `cargo xtask test` runs.

use crate::binaries::Binary;
use crate::guarantees::Guarantees;
use crate::install::install;
use crate::parallel::{in_parallel, into_inner, lock, processors};
use crate::progress::{Progress, cargo, now, root};
use crate::supervise::supervise;
use crate::{Result, dependencies, features, package};
use std::fs;
use std::io;
use std::sync::Mutex;
use std::time::Duration;

/// The time limit of one test binary. Even on two cores with several times as much other load, the
/// slowest ends well before. The harness names each test that has been running for a minute.
const TEST_BINARY_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// The time limit of all documentation tests together, including their build.
const DOCTESTS_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// The time limit of one example.
const EXAMPLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// The test binaries that take longest, in this order. They are run first, so that none is left alone at the
/// end.
const LONG_TESTS: &[&str] = &[
    "kafka",
    "everything",
    "campanile_postgres",
    "campanile_redis",
    "redis",
    "postgres",
    "storms",
];

/// The test binaries that run with more threads, because their tests wait for the delays of consumer groups.
const WAITING_TESTS: &[&str] = &["kafka", "everything"];

/// What is built. Each phase names the same packages and features, so that each dependency is built once.
/// The tests need brokers with TLS in addition. No crate of the workspace enables this by default, so that
/// the examples can be run without OpenSSL's headers.
const WORKSPACE: [&str; 3] = ["--workspace", "--features", "campanile-tests/kafka-tls"];

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
    let published = progress.phase("dependencies", || dependencies::check(progress))?;
    progress.phase("clippy", || {
        let mut clippy = cargo();
        clippy.arg("clippy").args(WORKSPACE).args(["--all-targets", "--", "-D", "warnings"]);
        progress.run(&mut clippy)
    })?;
    progress.phase("documentation", || {
        let mut doc = cargo();
        doc.arg("doc").args(WORKSPACE).arg("--no-deps");
        progress.run(doc.env("RUSTDOCFLAGS", "-D warnings"))
    })?;
    let binaries = progress.phase("build", || {
        // Also the examples that wait for input or for Ctrl-C and are not run here.
        Binary::build(progress, cargo().args(["test", "--no-run"]).args(WORKSPACE))
    })?;
    let (tests, others): (Vec<_>, Vec<_>) = binaries.into_iter().partition(|it| it.is_test);
    let output = progress.phase("tests", || run_tests(progress, tests))?;
    guarantees.check(&output)?;
    progress.phase("documentation's tests", || run_doctests(progress))?;
    progress.phase("examples", || run_examples(progress, &others))?;
    progress.phase("features", || features::check(progress, &published))?;
    progress.phase("packages", || package::check(progress, &published))?;
    guarantees.show(progress);
    Ok(())
}

/// Runs several test binaries at a time, because most wait for servers and timers. Collects the lines
/// that they printed. A failure does not keep the other binaries from running.
fn run_tests(progress: &Progress, mut binaries: Vec<Binary>) -> Result<Vec<String>> {
    let place = |name: &str| LONG_TESTS.iter().position(|long| *long == name);
    binaries.sort_by_key(|binary| place(&binary.name).unwrap_or(LONG_TESTS.len()));
    progress.step(&format!("running {} test binaries", binaries.len()));
    let results = Mutex::new((Vec::new(), Vec::new()));
    in_parallel(processors() + 1, &binaries, |binary| {
        let name = format!("{} of {}", binary.name, binary.package);
        let (start, mut output) = (now(), Vec::new());
        let mut command = binary.command();
        if WAITING_TESTS.contains(&&*binary.name) {
            command.args(["--test-threads", &(2 * processors()).to_string()]);
        }
        let finished = supervise(&mut command, TEST_BINARY_TIMEOUT, &mut output)?;
        let (seconds, output) = (start.elapsed().as_secs_f64(), String::from_utf8_lossy(&output));
        let (lines, failed) = &mut *lock(&results);
        println!("\n{name}, in {seconds:.1} s:\n{output}");
        if !binary.has_passed(&finished) {
            let error = finished.check(&name).err().map(|error| error.to_string());
            failed.push(error.unwrap_or(format!("{name}: exited before all of its tests had run")));
        } else {
            lines.extend(finished.lines);
        }
        Ok(())
    })?;
    let (lines, failed) = into_inner(results);
    match failed.is_empty() {
        true => Ok(lines),
        false => Err(format!("tests failed, with the output above: {}", failed.join(", ")).into()),
    }
}

/// Runs the examples in the documentation. `rustdoc` starts them, so only all of them together have a
/// time limit.
fn run_doctests(progress: &Progress) -> Result {
    let mut command = cargo();
    command.args(["test", "--doc"]).args(WORKSPACE);
    progress.supervise(&mut command, DOCTESTS_TIMEOUT, &mut io::stdout())?.check("a doctest")?;
    Ok(())
}

/// Runs each example of the package of examples. Reads their files and not the manifest, so that a file that
/// is missing from the manifest fails.
fn run_examples(progress: &Progress, binaries: &[Binary]) -> Result {
    let folder = root().join("examples");
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        let is_file = path.extension().is_some_and(|extension| extension == "rs");
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if name == "lib" || !(is_file || path.join("main.rs").is_file()) {
            continue;
        }
        let mut built = binaries.iter().filter(|it| it.folder == folder && it.name == name);
        let example = built.next().ok_or_else(|| format!("the example {name} is not built"))?;
        let (mut command, mut output) = (example.command(), io::stdout());
        // As `cargo run` does.
        command.current_dir(root());
        let finished = progress.supervise(&mut command, EXAMPLE_TIMEOUT, &mut output)?;
        finished.check(&format!("the example {name}"))?;
    }
    Ok(())
}
