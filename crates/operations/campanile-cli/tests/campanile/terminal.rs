//! The commands of a document, run in a shell.

use std::path::Path;
use std::process::Command;

/// A step of a document.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    /// A command after a prompt, and the text that it is shown to print.
    Command { line: &'a str, output: String },
    /// A command without a prompt. Its output is not shown.
    Unshown(&'a str),
    /// What happens outside of the terminal: a comment of the document.
    Comment(&'a str),
}

/// Reads the steps of a document in Markdown. Those in blocks marked as `text example` are left out: what
/// they print depends on the load, or on entries that are days old.
pub(crate) fn steps(document: &str) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    let mut is_code = false;
    for line in document.lines() {
        if line.starts_with("```") {
            is_code = line == "```text";
        } else if let Some(line) = line.strip_prefix("$ ").filter(|_| is_code) {
            steps.push(Step::Command { line, output: String::new() });
        } else if is_code && line.starts_with("campanile ") {
            steps.push(Step::Unshown(line.split('|').next().unwrap()));
        } else if let (true, Some(Step::Command { output, .. })) = (is_code, steps.last_mut()) {
            *output += line;
            output.push('\n');
        } else if let Some(comment) = line.strip_prefix("<!-- ") {
            steps.push(Step::Comment(comment.trim_end_matches(" -->")));
        }
    }
    steps
}

/// A shell with the settings of a document.
pub(crate) struct Terminal {
    /// What the document shows, and what it stands for.
    pub(crate) settings: Vec<(&'static str, String, &'static str)>,
}

impl Terminal {
    /// Runs a command. Returns what it prints, with the addresses that the document shows.
    fn run(&self, line: &str) -> String {
        let folder = Path::new(env!("CARGO_BIN_EXE_campanile")).parent().unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", line]);
        shell.env("PATH", format!("{}:{}", folder.display(), std::env::var("PATH").unwrap()));
        for (variable, value, _) in &self.settings {
            shell.env(variable, value);
        }
        let output = shell.output().unwrap();
        // 1: something needs attention. A warning about the test's servers is not of interest.
        let is_done = matches!(output.status.code(), Some(0 | 1));
        assert!(is_done, "{line}: {}", String::from_utf8_lossy(&output.stderr));
        let mut text = String::from_utf8(output.stdout).unwrap();
        for (_, value, shown) in &self.settings {
            text = text.replace(address(value), address(shown));
        }
        text
    }

    /// Runs a step, and compares what it prints with the document, apart from line breaks, times and
    /// tokens. A line of `…` stands for all that follows.
    pub(crate) fn check(&self, step: &Step<'_>) {
        match step {
            Step::Command { line, output } => {
                let printed = self.run(line);
                let (mut expected, mut found) = (normalized(output), normalized(&printed));
                if expected.last().is_some_and(|word| word == "…") {
                    expected.pop();
                    found.truncate(expected.len());
                }
                assert_eq!(found, expected, "{line} prints:\n{printed}");
            }
            Step::Unshown(line) => drop(self.run(line)),
            Step::Comment(_) => {}
        }
    }
}

/// The part of a URL that follows its scheme.
fn address(url: &str) -> &str {
    url.rsplit('/').next().unwrap()
}

/// The words of a text, with placeholders for what differs from run to run.
fn normalized(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut is_duration = false;
    for word in text.split_whitespace() {
        let is_token = word.len() >= 16 && word.bytes().all(|byte| byte.is_ascii_digit());
        let is_time = word.ends_with('Z') && word.parse::<humantime::Timestamp>().is_ok();
        if is_duration || word == "(in" {
            // `(in 1 min 12 s)`
            is_duration = !word.ends_with(')');
        } else if word == "ago)" {
            // `(53 s ago)`
            words.truncate(words.iter().rposition(|word| word.starts_with('(')).unwrap());
        } else if is_time {
            words.push("TIME".into());
        } else if is_token {
            words.push("TOKEN".into());
        } else {
            words.push(word.into());
        }
    }
    words
}
