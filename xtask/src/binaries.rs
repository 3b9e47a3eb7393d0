//! The test binaries and examples that cargo builds.
//!
//! cargo-nextest runs test binaries as well, but each test in a process of its own: every test of a store would
//! start that store's server.

use crate::Result;
use crate::libtest;
use crate::progress::Progress;
use crate::supervise::Finished;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The time limit of a build. Only a download that hangs reaches it.
const BUILD_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// An executable of the workspace.
#[derive(Clone, Debug, PartialEq)]
pub struct Binary {
    /// Its package.
    pub package: String,
    /// The folder of its package.
    pub folder: PathBuf,
    /// The name of its target.
    pub name: String,
    /// The executable file.
    pub path: PathBuf,
    /// Whether it has the test harness: not so for an example or a program.
    pub is_test: bool,
}

impl Binary {
    /// Runs `cargo test` or `cargo build`, and returns what it built.
    pub(crate) fn build(progress: &Progress, cargo: &mut Command) -> Result<Vec<Self>> {
        // Errors stay readable.
        cargo.args(["--message-format", "json-render-diagnostics"]);
        let built =
            progress.supervise(cargo, BUILD_TIMEOUT, &mut io::sink())?.check("the build")?;
        let messages = built.iter().filter_map(|line| serde_json::from_str(line).ok());
        Ok(messages.filter_map(|message| Self::from_message(&message)).collect())
    }

    /// Reads an executable from a message of cargo.
    pub fn from_message(message: &Value) -> Option<Self> {
        let path = message["executable"].as_str()?.into();
        let manifest = Path::new(message["manifest_path"].as_str()?);
        let folder: PathBuf = manifest.parent()?.into();
        // `path+file:///w/crates/library/campanile-core#0.1.0` or `path+file:///w/tests#campanile-tests@0.1.0`
        let (_, id) = message["package_id"].as_str()?.split_once('#')?;
        let package = match id.split_once('@') {
            Some((package, _)) => package.to_owned(),
            None => folder.file_name()?.to_str()?.to_owned(),
        };
        let name = message["target"]["name"].as_str()?.to_owned();
        let is_test = message["profile"]["test"].as_bool()?;
        Some(Self { package, folder, name, path, is_test })
    }

    /// A command that runs it as cargo does. Only what tests use is set.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.env("CARGO_PKG_NAME", &self.package);
        command
    }

    /// Whether it ended with success, after all of its tests had run.
    pub(crate) fn has_passed(&self, finished: &Finished) -> bool {
        finished.is_success() && (!self.is_test || libtest::has_finished(&finished.lines))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::supervise;

    fn binary(package_id: &str) -> Option<Binary> {
        Binary::from_message(&serde_json::json!({
            "reason": "compiler-artifact", "package_id": package_id,
            "manifest_path": "/w/crates/library/campanile-core/Cargo.toml", "target": { "name": "fuzz" },
            "profile": { "test": true }, "executable": "/t/fuzz-1",
        }))
    }

    #[test]
    fn binary_is_read_and_other_messages_skipped() {
        let named = binary("path+file:///w/crates/library/campanile-core#other@0.1.0").unwrap();
        assert_eq!((&*named.package, named.is_test), ("other", true));
        let binary = binary("path+file:///w/crates/library/campanile-core#0.1.0").unwrap();
        assert_eq!(
            (&*binary.package, &*binary.name, &*binary.path),
            ("campanile-core", "fuzz", Path::new("/t/fuzz-1"))
        );
        assert_eq!(
            binary.command().get_current_dir(),
            Some(Path::new("/w/crates/library/campanile-core"))
        );
        assert_eq!(Binary::from_message(&serde_json::json!({ "reason": "build-finished" })), None);
    }

    #[test]
    fn test_binary_that_exits_before_its_end_has_not_passed() {
        let binary = binary("path+file:///w/crates/library/campanile-core#0.1.0").unwrap();
        let has_passed = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let timeout = Duration::from_secs(60);
            binary.has_passed(&supervise(&mut command, timeout, &mut io::sink()).unwrap())
        };
        assert!(!has_passed("echo test a ... ok"));
        assert!(has_passed("echo test a ... ok; echo test result: ok. 1 passed"));
        assert!(!has_passed("echo test result: FAILED; exit 101"));
    }
}
