//! Test binaries that cargo has built.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The value of `--message-format` with which cargo prints binaries as JSON, and errors for people.
pub(crate) const FORMAT: &str = "json-render-diagnostics";

/// A test binary.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Binary {
    /// Its package.
    pub(crate) package: String,
    /// The folder of its package.
    pub(crate) folder: PathBuf,
    /// The name of its target.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

impl Binary {
    /// Reads a test binary from a message of cargo.
    pub(crate) fn from_message(message: &Value) -> Option<Self> {
        let path = message["executable"].as_str()?.into();
        let manifest = Path::new(message["manifest_path"].as_str()?);
        let folder: PathBuf = manifest.parent()?.into();
        // `path+file:///w/crates/campanile-core#0.1.0` or `path+file:///w/tests#campanile-tests@0.1.0`
        let (_, id) = message["package_id"].as_str()?.split_once('#')?;
        let package = match id.split_once('@') {
            Some((package, _)) => package.to_owned(),
            None => folder.file_name()?.to_str()?.to_owned(),
        };
        let name = message["target"]["name"].as_str()?.to_owned();
        let is_test = message["profile"]["test"].as_bool()?;
        is_test.then_some(Self { package, folder, name, path })
    }

    /// Reads the test binaries from the lines that cargo printed.
    pub(crate) fn from_lines(lines: &[String]) -> Vec<Self> {
        let messages = lines.iter().filter_map(|line| serde_json::from_str(line).ok());
        messages.filter_map(|message| Self::from_message(&message)).collect()
    }

    /// A command that runs it as cargo does. Only what tests use is set.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.env("CARGO_PKG_NAME", &self.package);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_binary_is_read_and_other_artifacts_skipped() {
        let line = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/campanile-core#0.1.0","manifest_path":"/w/crates/campanile-core/Cargo.toml","target":{"kind":["test"],"name":"fuzz"},"profile":{"test":true},"executable":"/t/fuzz-1"}"#;
        let lines = [
            line.to_owned(),
            line.replace("core#", "core#other@"),
            line.replace(r#""test":true"#, r#""test":false"#),
            line.replace(r#""/t/fuzz-1""#, "null"),
            "   Compiling campanile-core".to_owned(),
        ];
        let binaries = Binary::from_lines(&lines);
        let packages: Vec<_> = binaries.iter().map(|binary| &*binary.package).collect();
        assert_eq!(packages, ["campanile-core", "other"]);
        let binary = &binaries[0];
        assert_eq!((&*binary.name, &*binary.path), ("fuzz", Path::new("/t/fuzz-1")));
        assert_eq!(binary.command().get_current_dir(), Some(Path::new("/w/crates/campanile-core")));
    }
}
