//! Mutation testing: changes one expression at a time, and checks that a test fails.
//!
//! cargo-mutants lists the changes. It builds and runs all tests for each, which would take a day for
//! these packages. Here one build contains all mutants, of which an environment variable activates
//! one, and a mutant is run only against the tests that reach it.

mod instrument;
mod mutants;
mod suite;
mod tree;

use clap::Parser;
use mutants::Mutant;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use suite::{Group, Outcome, Test};
use tree::{Rejection, Tree};
use xtask::Result;
use xtask::command::Size;
use xtask::install::install;
use xtask::parallel::{in_parallel, into_inner, lock, processors};
use xtask::progress::{Progress, now, root};

/// The packages that are mutated, and whose tests are run, in the order of their dependencies.
const PACKAGES: &[&str] = &[
    "campanile-core",
    "campanile-idempotency",
    "campanile-driver",
    "campanile-redis",
    "campanile-postgres",
    "campanile-dynamodb",
];

/// Another package with tests of these: of their metrics.
const TESTERS: &[&str] = &["campanile"];

/// What a small run mutates and tests.
const SMALL: &[&str] = &["campanile-core"];

/// How long tests run for one mutant before no others are started: some mutants are reached by a
/// thousand tests, and one that could find them is seldom among the last.
const MUTANT_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// The duration from which a test is not run for a mutant.
const LONG_TEST: Duration = Duration::from_secs(30);

/// How much sooner, at most, a test is run because it has found mutants. A long test that finds most of
/// them must not run before all the short ones, which may be the only tests of a detail.
const MAX_WEIGHT: u32 = 30;

fn main() -> ExitCode {
    let selection = Selection::parse();
    let progress = Progress::start();
    progress.finish(mutate(&progress, &selection).map(|()| "done".to_owned()))
}

/// Which mutants to run.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask mutation")]
struct Selection {
    /// Whether to mutate only campanile-core (small), or the layer and the stores as well (full)
    #[arg(long, default_value = "small")]
    size: Size,
    /// Runs only the mutants with one of these texts in their names, such as the path of a file
    #[arg(long, value_delimiter = ',', conflicts_with = "size")]
    only: Vec<String>,
}

/// Runs mutants, and prints what happened as Markdown.
fn mutate(progress: &Progress, Selection { size, only }: &Selection) -> Result {
    let (packages, others) = match size {
        Size::Small if only.is_empty() => (SMALL, &[][..]),
        _ => (PACKAGES, TESTERS),
    };
    install(progress)?;
    let (mut mutants, excluded) = mutants::list(packages)?;
    mutants.retain(|mutant| only.is_empty() || only.iter().any(|it| mutant.name.contains(it)));
    let mut tree = Tree::copy(root().join("target/mutation/tree"), &mutants)?;
    let binaries = tree.build(progress, packages, others)?;
    let mut tests = Vec::new();
    for binary in &binaries {
        tests.extend(Test::list(binary)?);
    }
    progress.step(&format!("running {} tests without a mutant", tests.len()));
    let tests = trace(tests, mutants.len())?;
    let todo: Vec<_> = (0..mutants.len()).filter(|it| !tree.rejected.contains_key(it)).collect();
    progress.step(&format!("running {} mutants of {}", todo.len(), mutants.len()));
    let verdicts = run_all(progress, &mutants, &tests, &todo)?;
    let is_used = |test: &&Test| !test.reached.is_empty() && test.duration < LONG_TEST;
    let used = tests.iter().filter(is_used).count();
    println!("{}", to_markdown(packages, &mutants, excluded, &tree.rejected, &verdicts, used));
    Ok(())
}

/// The number of threads that run tests without a mutant: some tests wait for a server or a timer.
fn tracing_threads() -> usize {
    processors() + 1
}

/// The number of threads that run tests with a mutant. More than without one, because a test that
/// hangs with its mutant keeps its thread until the time limit, and most of these wait.
fn mutant_threads() -> usize {
    2 * processors() + 2
}

/// Runs each test without a mutant.
fn trace(tests: Vec<Test>, mutants: usize) -> Result<Vec<Test>> {
    let folder = root().join("target/mutation/traces");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let tests: Vec<_> = tests.into_iter().map(Mutex::new).enumerate().collect();
    in_parallel(tracing_threads(), &tests, |(number, test)| {
        lock(test).trace(mutants, &folder.join(number.to_string()))
    })?;
    Ok(tests.into_iter().map(|(_, test)| into_inner(test)).collect())
}

/// What became of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Caught,
    /// A test took several times as long as without the mutant.
    TimedOut,
    Missed,
    /// No test reaches the mutant, or only tests that take too long.
    Unreached,
}

fn run_all(
    progress: &Progress,
    mutants: &[Mutant],
    tests: &[Test],
    todo: &[usize],
) -> Result<BTreeMap<usize, Verdict>> {
    // How many mutants each test has found, of each package and of each file.
    let found = Mutex::new(HashMap::<(&Test, &str), u32>::new());
    let run = AtomicUsize::new(0);
    let verdicts = in_parallel(mutant_threads(), todo, |&mutant| {
        let Mutant { package, file, .. } = &mutants[mutant];
        let reaches = |test: &&Test| test.reached.contains(&mutant);
        let mut reaching: Vec<_> =
            tests.iter().filter(reaches).filter(|test| test.duration < LONG_TEST).collect();
        {
            let found = lock(&found);
            let count = |test, of: &str| found.get(&(test, of)).copied().unwrap_or(0);
            reaching.sort_by_cached_key(|test| {
                // By chance, because a test has to be run to be known for what it finds.
                let chance =
                    BuildHasherDefault::<DefaultHasher>::default().hash_one((mutant, test));
                let weight =
                    (1 + 4 * count(test, package) + 20 * count(test, file)).min(MAX_WEIGHT);
                test.duration.as_millis() * u128::from(chance % 1000) / u128::from(weight)
            });
        }
        let start = now();
        let mut verdict = if reaching.is_empty() { Verdict::Unreached } else { Verdict::Missed };
        for group in suite::group(reaching) {
            if start.elapsed() > MUTANT_TIMEOUT {
                break;
            }
            let (outcome, failed) = group.run(Some(mutant))?;
            // Twice with the mutant, and not without it in between: a load that slows both runs with
            // it also slows the one without it, which has the same time limit.
            let group = failed.first().map_or(group, |test| Group::from(*test));
            let is_found = outcome != Outcome::Passed
                && group.run(None)?.0 == Outcome::Passed
                && group.run(Some(mutant))?.0 != Outcome::Passed;
            if !is_found {
                continue;
            }
            for test in failed {
                for of in [package, file] {
                    *lock(&found).entry((test, of)).or_default() += 1;
                }
            }
            let is_slow = outcome == Outcome::TimedOut;
            verdict = if is_slow { Verdict::TimedOut } else { Verdict::Caught };
            break;
        }
        let count = run.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_multiple_of(100) {
            eprintln!("{count} mutants have run");
        }
        if matches!(verdict, Verdict::Missed | Verdict::Unreached) {
            eprintln!("{verdict:?}: {}", mutants[mutant].name);
        }
        Ok(verdict)
    })?;
    progress.step("all mutants have run");
    Ok(todo.iter().copied().zip(verdicts).collect())
}

fn to_markdown(
    packages: &[&str],
    mutants: &[Mutant],
    excluded: usize,
    rejected: &BTreeMap<usize, Rejection>,
    verdicts: &BTreeMap<usize, Verdict>,
    tests: usize,
) -> String {
    let is = |verdict| move |number: &usize| verdicts.get(number) == Some(&verdict);
    let is_rejected = |reason| move |number: &usize| rejected.get(number) == Some(&reason);
    let mut rows = String::new();
    let (mut all, mut caught) = (0, 0);
    for package in packages {
        let of: Vec<_> = (0..mutants.len()).filter(|it| mutants[*it].package == *package).collect();
        let count = |is: &dyn Fn(&usize) -> bool| of.iter().filter(|number| is(number)).count();
        let (failed, slow) = (count(&is(Verdict::Caught)), count(&is(Verdict::TimedOut)));
        let (missed, unreached) = (count(&is(Verdict::Missed)), count(&is(Verdict::Unreached)));
        rows += &format!(
            "\n| `{package}` | {} | {} | {} | {failed} | {slow} | {missed} | {unreached} |",
            of.len(),
            count(&is_rejected(Rejection::DoesNotCompile)),
            count(&is_rejected(Rejection::NotSwitchable)),
        );
        all += failed + slow + missed + unreached;
        caught += failed + slow;
    }
    let names = |verdict| -> String {
        let of = (0..mutants.len()).filter(is(verdict));
        of.map(|number| format!("\n* `{}`", mutants[number].name.replace('`', "'"))).collect()
    };
    let (missed, unreached) = (names(Verdict::Missed), names(Verdict::Unreached));
    let (share, limit) = (caught as f64 / f64::max(all as f64, 1.0) * 100.0, MUTANT_TIMEOUT);
    format!(
        "{tests} tests found {caught} of {all} mutants: {share:.1}%. `.cargo/mutants.toml` excludes {excluded} \
         others. No test of a mutant was started after {limit:?}.\n\n\
         | package | mutants | do not compile | cannot be chosen at run time | a test failed | a test took too \
         long | missed | reached by no test |\n|---|---|---|---|---|---|---|---|{rows}\n\n\
         Missed:\n{missed}\n\nReached by no test:\n{unreached}"
    )
}
