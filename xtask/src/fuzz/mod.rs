//! Runs the fuzz targets with libFuzzer, which looks for inputs that reach new code.
//!
//! As tests, the targets repeat their corpus and some random inputs. Here they are built once more,
//! with counters at each edge of the control flow.

mod binaries;
mod output;
mod targets;

use crate::Result;
use crate::parallel::{in_parallel, processors};
use crate::progress::{Progress, root};
use crate::prove::Size;
use crate::supervise::{Finished, supervise};
use binaries::Binaries;
use output::Explored;
use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher};
use std::process::Command;
use std::time::Duration;
use std::{env, fs, io};
use targets::{TARGETS, Target};

/// The seconds for each target: in a small run, in a full one, and in a soak.
const SMALL: u64 = 10;
const FULL: u64 = 120;
const SOAK: u64 = 3_600;

/// The variable with the seconds for each target in a soak.
const SOAK_VARIABLE: &str = "CAMPANILE_FUZZ_SECONDS";

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

/// Runs all targets or one, and prints what was explored as Markdown.
pub(crate) fn fuzz(progress: &Progress, args: &[OsString]) -> Result {
    let Selection { target, seconds, keep } = Selection::parse(args)?;
    let targets: Vec<_> =
        TARGETS.iter().filter(|it| target.as_ref().is_none_or(|name| name == it.name())).collect();
    let binaries = Binaries::build(progress)?;
    let explored = explore(progress, &binaries, &targets, seconds)?;
    for target in targets.iter().filter(|_| keep) {
        keep_corpus(progress, &binaries, target)?;
    }
    println!("{}", explored.to_markdown());
    explored.check()
}

/// Runs all targets for long. Returns the totals.
pub(crate) fn soak(progress: &Progress) -> Result<String> {
    let seconds = match env::var(SOAK_VARIABLE) {
        Ok(seconds) => seconds.parse().map_err(|_| format!("{SOAK_VARIABLE} is not a number"))?,
        Err(_) => SOAK,
    };
    let binaries = Binaries::build(progress)?;
    let explored = explore(progress, &binaries, &TARGETS.iter().collect::<Vec<_>>(), seconds)?;
    explored.check()?;
    Ok(explored.to_string())
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
    for (target, Finished { lines, status }) in targets.iter().zip(runs) {
        explored.add(target, &lines, status.is_some_and(|status| status.success()));
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
    if !finished.status.is_some_and(|status| status.success()) {
        let shown = finished.lines.len().saturating_sub(MAX_SHOWN_LINES);
        eprintln!("{}", finished.lines[shown..].join("\n"));
    }
    // Git does not keep an empty folder, and a test of this program expects none.
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
    if !finished.status.is_some_and(|status| status.success()) {
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

/// Which targets to run, and for how long.
#[derive(Debug, PartialEq, Eq)]
struct Selection {
    target: Option<String>,
    seconds: u64,
    keep: bool,
}

impl Selection {
    /// Parses `[TARGET] [--size small|full | --seconds N] [--keep]`. The default is all targets at small
    /// size.
    fn parse(args: &[OsString]) -> Result<Self> {
        let mut selection = Self { target: None, seconds: SMALL, keep: false };
        let mut args = args.iter().map(|arg| arg.to_string_lossy());
        while let Some(arg) = args.next() {
            match &*arg {
                "--size" => {
                    selection.seconds = match Size::parse(args.next().as_deref())? {
                        Size::Small => SMALL,
                        Size::Full => FULL,
                    }
                }
                "--seconds" => {
                    let seconds = args.next().and_then(|seconds| seconds.parse().ok());
                    selection.seconds = seconds.ok_or("expected --seconds and a number")?;
                }
                "--keep" => selection.keep = true,
                name if TARGETS.iter().any(|target| target.name() == name) => {
                    selection.target = Some(name.to_owned());
                }
                name => {
                    let names: Vec<_> = TARGETS.iter().map(Target::name).collect();
                    let names = names.join(", ");
                    return Err(format!("no target `{name}`; the targets are: {names}").into());
                }
            }
        }
        Ok(selection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Selection> {
        Selection::parse(&args.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn target_and_time_are_selected_and_others_rejected() {
        let all = Selection { target: None, seconds: SMALL, keep: false };
        assert_eq!(parse(&[]).unwrap(), all);
        assert_eq!(parse(&["--size", "full"]).unwrap(), Selection { seconds: FULL, ..all });
        let entry = Selection { target: Some("entry".into()), seconds: 7, keep: true };
        assert_eq!(parse(&["entry", "--seconds", "7", "--keep"]).unwrap(), entry);
        for args in [&["entries"][..], &["--size", "huge"], &["--seconds"], &["--seconds", "x"]] {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }
}
