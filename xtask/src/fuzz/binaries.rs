use super::targets::{TARGETS, Target};
use crate::Result;
use crate::progress::{Progress, cargo};
use crate::supervise::supervise;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
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

/// The names of the binaries, and errors for people.
const FORMAT: &str = "json-render-diagnostics";

/// The time limit of the build.
const BUILD_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// A package, and the name of a test binary.
type Name = (String, String);

/// The test binaries with targets.
pub(super) struct Binaries(BTreeMap<Name, PathBuf>);

impl Binaries {
    pub(super) fn build(progress: &Progress) -> Result<Self> {
        progress.step("building the fuzz targets");
        let (in_tests, in_sources): (Vec<_>, Vec<_>) =
            TARGETS.iter().partition(|target| target.is_in_tests());
        let tests: BTreeSet<_> = in_tests.iter().map(|target| target.binary).collect();
        let tests = tests.into_iter().flat_map(|name| ["--test", name]).collect();
        let mut binaries = BTreeMap::new();
        for (kinds, targets) in [(vec!["--lib", "--bins"], in_sources), (tests, in_tests)] {
            binaries.extend(build(&kinds, &targets)?);
        }
        Ok(Self(binaries))
    }

    pub(super) fn find(&self, target: &Target) -> Result<&PathBuf> {
        let Target { package, binary, .. } = target;
        let found = self.0.get(&(package.to_string(), binary.to_string()));
        found.ok_or_else(|| format!("{package} has no test binary {binary}").into())
    }
}

/// Builds the test binaries of these kinds. Those without a target cannot be linked, because what
/// counts for the fuzzer is in `bolero`, so only packages with targets of these kinds are built.
fn build(kinds: &[&str], targets: &[&Target]) -> Result<Vec<(Name, PathBuf)>> {
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
    Ok(finished.lines.iter().filter_map(|line| executable(line)).collect())
}

/// Reads the package, the name and the path of a test binary from a line of cargo's messages.
fn executable(line: &str) -> Option<(Name, PathBuf)> {
    let message: Value = serde_json::from_str(line).ok()?;
    let path = message["executable"].as_str()?.into();
    let is_test = message["profile"]["test"].as_bool()?;
    // `path+file:///…/crates/campanile-core#0.1.0`
    let (folder, _) = message["package_id"].as_str()?.split_once('#')?;
    let package = folder.rsplit('/').next()?.to_owned();
    is_test.then_some(((package, message["target"]["name"].as_str()?.to_owned()), path))
}

/// The platform of the compiler.
fn host() -> Result<String> {
    let version = Command::new("rustc").arg("-vV").output()?;
    let version = String::from_utf8(version.stdout)?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.ok_or("`rustc -vV` names no host")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_binary_is_read_and_other_artifacts_skipped() {
        let line = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/campanile-core#0.1.0",
            "target":{"kind":["test"],"name":"fuzz"},"profile":{"test":true},"executable":"/t/fuzz-1"}"#;
        let key = ("campanile-core".to_owned(), "fuzz".to_owned());
        assert_eq!(executable(line), Some((key, "/t/fuzz-1".into())));
        for other in [
            line.replace(r#""test":true"#, r#""test":false"#),
            line.replace(r#""/t/fuzz-1""#, "null"),
            "   Compiling campanile-core".to_owned(),
        ] {
            assert_eq!(executable(&other), None);
        }
    }
}
