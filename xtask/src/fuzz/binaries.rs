//! The test binaries with which targets are fuzzed.

use super::targets::{TARGETS, Target};
use crate::Result;
use crate::binaries::Binary;
use crate::features::host;
use crate::progress::{Progress, cargo};
use std::collections::BTreeSet;
use std::path::Path;

/// The flags with which the compiler counts what an input reaches, as `cargo bolero` sets them. The
/// stable compiler knows them all; it has no sanitizers, which would find wrong accesses of `unsafe`
/// code only.
///
/// `cargo bolero` does the same for one target at a time, and would have to be built first.
const FLAGS: &str = "--cfg fuzzing --cfg fuzzing_libfuzzer -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// The test binaries with targets.
pub(super) struct Binaries(Vec<Binary>);

impl Binaries {
    pub(super) fn build(progress: &Progress) -> Result<Self> {
        let (in_tests, in_sources): (Vec<_>, Vec<_>) =
            TARGETS.iter().partition(|target| target.is_in_tests());
        let tests: BTreeSet<_> = in_tests.iter().map(|target| target.binary).collect();
        let tests = tests.into_iter().flat_map(|name| ["--test", name]).collect();
        let mut binaries = Vec::new();
        for (kinds, targets) in [(vec!["--lib", "--bins"], in_sources), (tests, in_tests)] {
            binaries.extend(build(progress, &kinds, &targets)?);
        }
        Ok(Self(binaries))
    }

    pub(super) fn find(&self, target: &Target) -> Result<&Path> {
        let Target { package, binary, .. } = target;
        let found = self.0.iter().find(|it| it.package == *package && it.name == *binary);
        Ok(found.map(|found| &*found.path).ok_or_else(|| format!("{package} has no {binary}"))?)
    }
}

/// Builds the test binaries of these kinds. Those without a target cannot be linked, because what
/// counts for the fuzzer is in `bolero`, so only packages with targets of these kinds are built.
fn build(progress: &Progress, kinds: &[&str], targets: &[&Target]) -> Result<Vec<Binary>> {
    let mut command = cargo();
    command.args(["test", "--no-run", "--profile", "fuzz"]).args(kinds);
    // With a target, the flags do not apply to what runs during the build.
    command.args(["--target", &host()?, "--target-dir", "target/fuzz"]);
    for package in targets.iter().map(|target| target.package).collect::<BTreeSet<_>>() {
        command.args(["--package", package]);
    }
    Binary::build(progress, command.env("RUSTFLAGS", FLAGS))
}
