use crate::Result;
use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

/// Tells what is done, and when it began.
pub(crate) struct Progress {
    start: Instant,
}

impl Progress {
    #[expect(
        clippy::disallowed_methods,
        reason = "the time shown to who waits; no lock depends on it"
    )]
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Shows what comes next, and the time since the start.
    pub(crate) fn step(&self, what: &str) {
        eprintln!("[{:6.1} s] {what}", self.start.elapsed().as_secs_f64());
    }

    /// Shows a command and runs it; its output goes where ours goes.
    pub(crate) fn run(&self, command: &mut Command) -> Result {
        let shown = show(command);
        self.step(&shown);
        let status =
            command.status().map_err(|error| format!("`{shown}` cannot be run: {error}"))?;
        succeeded(&shown, status)
    }

    /// The same, and gives the lines of its standard output, which are shown as they come, and how it
    /// ended.
    pub(crate) fn run_and_listen(&self, command: &mut Command) -> Result<(Vec<String>, Result)> {
        let shown = show(command);
        self.step(&shown);
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("`{shown}` cannot be run: {error}"))?;
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let lines = listen(output, &mut io::stdout())?;
        let ended = succeeded(&shown, child.wait()?);
        Ok((lines, ended))
    }
}

/// Shows each line when it comes, and gives all of them.
fn listen(mut output: impl BufRead, shown: &mut impl Write) -> io::Result<Vec<String>> {
    let (mut lines, mut line) = (Vec::new(), Vec::new());
    while output.read_until(b'\n', &mut line)? > 0 {
        shown.write_all(&line)?;
        shown.flush()?;
        lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
        line.clear();
    }
    Ok(lines)
}

fn succeeded(shown: &str, status: ExitStatus) -> Result {
    if status.success() { Ok(()) } else { Err(format!("`{shown}` ended with {status}").into()) }
}

/// Cargo, in the root of the workspace, the one by which this program was started.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// The root of the workspace: cargo says where it has started us. We may have been compiled in another
/// checkout, if both share a target directory.
pub(crate) fn root() -> PathBuf {
    let compiled = || env!("CARGO_MANIFEST_DIR").into();
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(compiled));
    here.parent().expect("xtask lies in the workspace").to_owned()
}

/// The command as one would type it.
fn show(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let mut words = Vec::new();
    for (variable, value) in command.get_envs() {
        let value = value.unwrap_or_default().to_string_lossy();
        let variable = variable.to_string_lossy();
        if value.contains(' ') {
            words.push(format!("{variable}='{value}'"));
        } else {
            words.push(format!("{variable}={value}"));
        }
    }
    words.push(name.to_string_lossy().into_owned());
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_listened_to_is_shown_as_it_is_and_given_line_by_line() {
        let output: &[u8] = b"one\r\n\xfftwo\n\nlast";
        let mut shown = Vec::new();
        let lines = listen(output, &mut shown).expect("nothing fails");
        assert_eq!(shown, output);
        assert_eq!(lines, ["one", "\u{fffd}two", "", "last"]);
    }

    #[test]
    fn a_command_that_fails_says_how_although_it_was_listened_to() {
        let mut command = Command::new("false");
        let (_, ended) = Progress::start().run_and_listen(&mut command).expect("it runs");
        let error = ended.expect_err("it fails").to_string();
        assert_eq!(error, "`false` ended with exit status: 1");
    }
}
