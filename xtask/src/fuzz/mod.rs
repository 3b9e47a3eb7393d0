//! Runs the fuzz targets with libFuzzer, which looks for inputs that reach new code.
//!
//! As tests, the targets repeat their corpus and some random inputs. Here they are built once more,
//! with counters at each edge of the control flow.

mod binaries;
mod output;
mod targets;

use crate::Result;
use crate::command::Size;
use crate::parallel::{in_parallel, processors};
use crate::progress::{Progress, root};
use crate::supervise::{Finished, supervise};
use binaries::Binaries;
use output::Explored;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::process::Command;
use std::time::Duration;
use std::{env, fs, io};
use targets::{TARGETS, Target};

/// The seconds for each target in a soak, and the variable that sets another number.
const SOAK: u64 = 3_600;
pub(crate) const SECONDS: &str = "CAMPANILE_FUZZ_SECONDS";

/// The maximum length of an input, in bytes.
const MAX_LENGTH: usize = 4_096;

/// The time limit of one input, in seconds.
const INPUT_TIMEOUT: u64 = 10;

/// The limit of a target's address space, in KiB: no input of 4 KiB may make it allocate as much.
const MAX_MEMORY_KIB: u64 = 4 << 20;

/// How much is shown of the output of a target that has crashed: its last lines.
const MAX_SHOWN_LINES: usize = 100;

/// Where libFuzzer keeps the inputs that it finds, so that the next run continues from them.
const FOUND: &str = "target/fuzz/corpus";

/// Which targets to run, and for how long.
#[derive(Debug, clap::Args)]
pub(crate) struct Exploration {
    /// The target to run [default: all]
    #[arg(value_parser = TARGETS.iter().map(Target::name).collect::<Vec<_>>())]
    target: Option<String>,
    /// How long each target runs: 10 seconds (small) or 120 (full)
    #[arg(long, default_value = "small")]
    size: Size,
    /// How long each target runs instead
    #[arg(long, conflicts_with = "size")]
    seconds: Option<u64>,
    /// Makes the smallest inputs that were found the corpus in the tree
    #[arg(long)]
    keep: bool,
}

/// Runs all targets or one, and returns what was explored as Markdown.
pub(crate) fn fuzz(progress: &Progress, exploration: &Exploration) -> Result<String> {
    let Exploration { target, size, seconds, keep } = exploration;
    let targets: Vec<_> =
        TARGETS.iter().filter(|it| target.as_ref().is_none_or(|name| name == it.name())).collect();
    let binaries = Binaries::build(progress)?;
    let explored = explore(progress, &binaries, &targets, seconds.unwrap_or(seconds_of(*size)))?;
    for target in targets.iter().filter(|_| *keep) {
        keep_corpus(progress, &binaries, target)?;
    }
    explored.check()?;
    Ok(explored.to_markdown())
}

/// Runs all targets, and returns what was explored as Markdown.
pub(crate) fn prove(progress: &Progress, size: Size) -> Result<String> {
    Ok(explore_all(progress, seconds_of(size))?.to_markdown())
}

/// Runs all targets for long. Returns the totals.
pub(crate) fn soak(progress: &Progress) -> Result<String> {
    let seconds = match env::var(SECONDS) {
        Ok(seconds) => seconds.parse().map_err(|_| format!("{SECONDS} is not a number"))?,
        Err(_) => SOAK,
    };
    Ok(explore_all(progress, seconds)?.to_string())
}

fn seconds_of(size: Size) -> u64 {
    match size {
        Size::Small => 10,
        Size::Full => 120,
    }
}

fn explore_all(progress: &Progress, seconds: u64) -> Result<Explored> {
    let binaries = Binaries::build(progress)?;
    let explored = explore(progress, &binaries, &TARGETS.iter().collect::<Vec<_>>(), seconds)?;
    explored.check()?;
    Ok(explored)
}

/// Runs targets, one for each processor at a time, even if some find a crash.
fn explore(
    progress: &Progress,
    binaries: &Binaries,
    targets: &[&'static Target],
    seconds: u64,
) -> Result<Explored> {
    // libFuzzer reads a number of 32 bits, and draws one for 0.
    let seed = RandomState::new().build_hasher().finish() as u32 | 1;
    progress.step(&format!("fuzzing {} targets, each for {seconds} s", targets.len()));
    let runs = in_parallel(processors(), targets, |target| {
        let finished = run(binaries, target, seed, seconds)?;
        eprintln!("{} has run", target.name());
        Ok(finished)
    })?;
    let mut explored = Explored::new(seed, seconds);
    for (target, finished) in targets.iter().zip(runs) {
        explored.add(target, &finished.lines, finished.is_success());
    }
    Ok(explored)
}

/// Runs a target, and shows its output if it ends with an error.
fn run(binaries: &Binaries, target: &Target, seed: u32, seconds: u64) -> Result<Finished> {
    let (found, inputs) = (format!("{FOUND}/{}", target.name()), target.inputs());
    let crashes = format!("{inputs}/crashes");
    for folder in [&found, &crashes] {
        fs::create_dir_all(root().join(folder))?;
    }
    let options = format!(
        "{found} {inputs}/corpus -artifact_prefix={crashes}/ -seed={seed} \
         -max_total_time={seconds} -max_len={MAX_LENGTH} -timeout={INPUT_TIMEOUT} \
         -print_final_stats=1"
    );
    let mut command = libfuzzer(binaries, target, &options)?;
    let deadline = Duration::from_secs(seconds + 10 * 60);
    let finished = supervise(&mut command, deadline, &mut io::sink())?;
    if !finished.is_success() {
        let shown = finished.lines.len().saturating_sub(MAX_SHOWN_LINES);
        eprintln!("{}", finished.lines[shown..].join("\n"));
    }
    // It stays only if it has an input.
    let _ = fs::remove_dir(root().join(crashes));
    Ok(finished)
}

/// Replaces the corpus of the target with the smallest inputs that reach all that was reached.
fn keep_corpus(progress: &Progress, binaries: &Binaries, target: &Target) -> Result {
    progress.step(&format!("minimizing the corpus of {}", target.name()));
    let corpus = root().join(target.inputs()).join("corpus");
    let minimized = root().join(format!("{FOUND}/{}.minimized", target.name()));
    if minimized.exists() {
        fs::remove_dir_all(&minimized)?;
    }
    fs::create_dir_all(&minimized)?;
    let (found, inputs) = (format!("{FOUND}/{}", target.name()), target.inputs());
    // Without counters: an edge that is taken more often is no new input.
    let options = format!(
        "-merge=1 -use_counters=0 {found}.minimized {inputs}/corpus {found} -max_len={MAX_LENGTH}"
    );
    let mut command = libfuzzer(binaries, target, &options)?;
    let finished = supervise(&mut command, Duration::from_secs(10 * 60), &mut io::stderr())?;
    if !finished.is_success() {
        return Err(format!("the corpus of {} cannot be minimized", target.name()).into());
    }
    fs::remove_dir_all(&corpus)?;
    fs::create_dir_all(&corpus)?;
    for input in fs::read_dir(&minimized)? {
        let input = input?;
        fs::copy(input.path(), corpus.join(input.file_name()))?;
    }
    Ok(())
}

/// The command that runs a target with these options of libFuzzer, and writes all to its standard
/// output.
fn libfuzzer(binaries: &Binaries, target: &Target, options: &str) -> Result<Command> {
    const LIMITED: &str = "ulimit -v \"$0\" && exec \"$@\" 2>&1";
    let mut command = Command::new("sh");
    command.args(["-c", LIMITED, &MAX_MEMORY_KIB.to_string()]).arg(binaries.find(target)?);
    command.args([target.test, "--exact", "--nocapture"]);
    command.current_dir(root()).env("BOLERO_LIBFUZZER_ARGS", options);
    Ok(command)
}
