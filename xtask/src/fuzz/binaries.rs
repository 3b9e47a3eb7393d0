//! The test binaries with which targets are fuzzed.

use super::targets::{TARGETS, Target};
use crate::Result;
use crate::binaries::{Binary, FORMAT};
use crate::progress::{Progress, cargo};
use crate::supervise::supervise;
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The flags with which the compiler counts what an input reaches, as `cargo bolero` sets them. The
/// stable compiler knows them all; it has no sanitizers, which would find wrong accesses of `unsafe`
/// code only.
const FLAGS: &str = "--cfg fuzzing --cfg fuzzing_libfuzzer -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// The time limit of the build.
const BUILD_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// The test binaries with targets.
pub(super) struct Binaries(Vec<Binary>);

impl Binaries {
    pub(super) fn build(progress: &Progress) -> Result<Self> {
        progress.step("building the fuzz targets");
        let (in_tests, in_sources): (Vec<_>, Vec<_>) =
            TARGETS.iter().partition(|target| target.is_in_tests());
        let tests: BTreeSet<_> = in_tests.iter().map(|target| target.binary).collect();
        let tests = tests.into_iter().flat_map(|name| ["--test", name]).collect();
        let mut binaries = Vec::new();
        for (kinds, targets) in [(vec!["--lib", "--bins"], in_sources), (tests, in_tests)] {
            binaries.extend(build(&kinds, &targets)?);
        }
        Ok(Self(binaries))
    }

    pub(super) fn find(&self, target: &Target) -> Result<&PathBuf> {
        let Target { package, binary, .. } = target;
        let found = self.0.iter().find(|it| it.package == *package && it.name == *binary);
        found
            .map(|found| &found.path)
            .ok_or_else(|| format!("{package} has no test binary {binary}").into())
    }
}

/// Builds the test binaries of these kinds. Those without a target cannot be linked, because what
/// counts for the fuzzer is in `bolero`, so only packages with targets of these kinds are built.
fn build(kinds: &[&str], targets: &[&Target]) -> Result<Vec<Binary>> {
    let mut command = cargo();
    command.args(["test", "--no-run", "--profile", "fuzz", "--message-format", FORMAT]);
    // With a target, the flags do not apply to what runs during the build.
    command.args(["--target", &host()?, "--target-dir", "target/fuzz"]).args(kinds);
    for package in targets.iter().map(|target| target.package).collect::<BTreeSet<_>>() {
        command.args(["--package", package]);
    }
    command.env("RUSTFLAGS", FLAGS);
    let finished = supervise(&mut command, BUILD_TIMEOUT, &mut io::sink())?;
    if !finished.status.is_some_and(|status| status.success()) {
        return Err("the fuzz targets cannot be built".into());
    }
    Ok(Binary::from_lines(&finished.lines))
}

/// The platform of the compiler.
fn host() -> Result<String> {
    let version = Command::new("rustc").arg("-vV").output()?;
    let version = String::from_utf8(version.stdout)?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.ok_or("`rustc -vV` names no host")?.to_owned())
}
