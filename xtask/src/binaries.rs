//! Test binaries that cargo has built.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The value of `--message-format` with which cargo prints binaries as JSON, and errors for people.
pub(crate) const FORMAT: &str = "json-render-diagnostics";

/// A test binary.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Binary {
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
        let name = message["target"]["name"].as_str()?.to_owned();
        let is_test = message["profile"]["test"].as_bool()?;
        is_test.then(|| Some(Self { folder: manifest.parent()?.into(), name, path }))?
    }

    /// Reads the test binaries from the lines that cargo printed.
    pub(crate) fn from_lines(lines: &[String]) -> Vec<Self> {
        let messages = lines.iter().filter_map(|line| serde_json::from_str(line).ok());
        messages.filter_map(|message| Self::from_message(&message)).collect()
    }

    /// The name of the folder of its package.
    pub(crate) fn package(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// A command that runs it as cargo does.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_binary_is_read_and_other_artifacts_skipped() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/campanile-core/Cargo.toml","target":{"kind":["test"],"name":"fuzz"},"profile":{"test":true},"executable":"/t/fuzz-1"}"#;
        let lines = [
            line.to_owned(),
            line.replace(r#""test":true"#, r#""test":false"#),
            line.replace(r#""/t/fuzz-1""#, "null"),
            "   Compiling campanile-core".to_owned(),
        ];
        let [binary] = &Binary::from_lines(&lines)[..] else { panic!("there is one test binary") };
        assert_eq!(binary.package(), "campanile-core");
        assert_eq!((&*binary.name, &*binary.path), ("fuzz", Path::new("/t/fuzz-1")));
        assert_eq!(binary.command().get_current_dir(), Some(Path::new("/w/crates/campanile-core")));
    }
}
