//! The copy of the tree that has all mutants.

use crate::instrument::{Instrumented, instrument};
use crate::mutants::{Genre, Mutant};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use xtask::Result;
use xtask::binaries::Binary;
use xtask::progress::{Progress, cargo, root};
use xtask::supervise::supervise;

/// The time limit of one build.
const BUILD_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// The error of a call in a constant function or a constant, which no mutant can be chosen in at
/// run time.
const NOT_CONST: &str = "E0015";

/// The error of a match that does not cover all values.
const NOT_EXHAUSTIVE: &str = "E0004";

/// Why a mutant is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    DoesNotCompile,
    /// It may compile alone, but cannot be chosen at run time.
    NotSwitchable,
}

/// A copy of the workspace, with all mutants that can be built together.
pub(crate) struct Tree<'a> {
    folder: PathBuf,
    mutants: &'a [Mutant],
    pub(crate) rejected: BTreeMap<usize, Rejection>,
    files: BTreeMap<&'a str, Instrumented>,
}

impl<'a> Tree<'a> {
    /// Copies the workspace into `folder`.
    pub(crate) fn copy(folder: PathBuf, mutants: &'a [Mutant]) -> Result<Self> {
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let list = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output()?;
        for file in String::from_utf8(list.stdout)?.split_terminator('\0') {
            let source = root().join(file);
            if source.is_file() {
                write(&folder.join(file), &fs::read(source)?)?;
            }
        }
        let packages: BTreeSet<_> = mutants.iter().map(|mutant| &*mutant.package).collect();
        for package in packages {
            let manifest = folder.join("crates/library").join(package).join("Cargo.toml");
            let text = fs::read_to_string(&manifest)?;
            let dependency = "[dependencies]\nmutant-switch = { path = \"../mutant-switch\" }";
            fs::write(&manifest, text.replacen("[dependencies]", dependency, 1))?;
        }
        let switch = folder.join("crates/library/mutant-switch");
        let manifest = "[package]\nname = \"mutant-switch\"\nedition = \"2024\"\n";
        write(&switch.join("Cargo.toml"), manifest.as_bytes())?;
        write(&switch.join("src/lib.rs"), include_bytes!("switch.rs"))?;
        // An opaque type is the same type wherever the function returns.
        let is_opaque = |mutant: &Mutant| {
            mutant.genre == Genre::FnValue && mutant.return_type.contains("impl ")
        };
        let rejected = (0..mutants.len())
            .filter(|number| is_opaque(&mutants[*number]))
            .map(|number| (number, Rejection::NotSwitchable))
            .collect();
        let mut tree = Self { folder, mutants, rejected, files: BTreeMap::new() };
        tree.instrument()?;
        tree.reject_unplaced();
        Ok(tree)
    }

    /// Writes each file with the mutants that are not rejected.
    fn instrument(&mut self) -> Result {
        let mut by_file: BTreeMap<&str, Vec<(usize, &Mutant)>> = BTreeMap::new();
        for (number, mutant) in self.mutants.iter().enumerate() {
            let file = by_file.entry(&mutant.file).or_default();
            if !self.rejected.contains_key(&number) {
                file.push((number, mutant));
            }
        }
        for (file, mutants) in by_file {
            let source = fs::read_to_string(root().join(file))?;
            let instrumented =
                instrument(&source, &mutants).map_err(|error| format!("{file}: {error}"))?;
            // So that cargo checks again only what has changed.
            if self.files.get(file).is_none_or(|before| before.text != instrumented.text) {
                write(&self.folder.join(file), instrumented.text.as_bytes())?;
            }
            self.files.insert(file, instrumented);
        }
        Ok(())
    }

    /// Rejects the mutants that have no place: `||` in conditions that bind variables, and guards
    /// that do.
    fn reject_unplaced(&mut self) {
        let ranges = self.files.values().flat_map(|file| &file.ranges);
        let placed: BTreeSet<_> = ranges.map(|(_, number)| *number).collect();
        for (number, mutant) in self.mutants.iter().enumerate() {
            if !placed.contains(&number) {
                let reason = match mutant.genre {
                    Genre::BinaryOperator => Rejection::DoesNotCompile,
                    _ => Rejection::NotSwitchable,
                };
                self.rejected.entry(number).or_insert(reason);
            }
        }
    }

    /// Builds the tests of these packages and of `others`, after rejecting what does not compile.
    pub(crate) fn build(
        &mut self,
        progress: &Progress,
        packages: &[&str],
        others: &[&str],
    ) -> Result<Vec<Binary>> {
        for package in packages {
            progress.step(&format!("checking the mutants of {package}"));
            self.compile(&["check", "--lib", "--package", package])?;
        }
        progress.step("building the tests with all mutants");
        let packages = packages.iter().chain(others).flat_map(|package| ["--package", package]);
        let mut test = vec!["test", "--no-run", "--lib", "--tests"];
        test.extend(packages);
        let messages = self.compile(&test)?;
        let binaries = messages.iter().filter_map(Binary::from_message);
        Ok(binaries.filter(|binary| binary.is_test).collect())
    }

    /// Runs cargo until it succeeds, and rejects mutants with errors. Returns its messages.
    fn compile(&mut self, args: &[&str]) -> Result<Vec<Value>> {
        loop {
            let mut command = cargo();
            command.args(args).args(["--all-features", "--message-format", "json"]);
            command.arg("--target-dir").arg(root().join("target/mutation/target"));
            command.current_dir(&self.folder).stderr(Stdio::null());
            // What a mutant makes superfluous is no error.
            command.env("RUSTFLAGS", "--cap-lints allow");
            command.env("CARGO_PROFILE_DEV_DEBUG", "0");
            let finished = supervise(&mut command, BUILD_TIMEOUT, &mut io::sink())?;
            let messages: Vec<Value> =
                finished.lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
            if finished.is_success() {
                return Ok(messages);
            }
            let before = self.rejected.len();
            let mut others = String::new();
            for error in messages.iter().filter(|message| message["message"]["level"] == "error") {
                match self.blame(&error["message"]) {
                    Some((number, reason)) => drop(self.rejected.insert(number, reason)),
                    None => others += error["message"]["rendered"].as_str().unwrap_or_default(),
                }
            }
            if self.rejected.len() == before {
                return Err(format!("the copy with mutants does not compile:\n{others}").into());
            }
            self.instrument()?;
        }
    }

    /// Finds the mutant that causes an error of the compiler.
    fn blame(&self, error: &Value) -> Option<(usize, Rejection)> {
        let code = error["code"]["code"].as_str()?;
        let reason =
            if code == NOT_CONST { Rejection::NotSwitchable } else { Rejection::DoesNotCompile };
        let (primary, others): (Vec<_>, Vec<_>) =
            error["spans"].as_array()?.iter().partition(|span| span["is_primary"] == true);
        let number = primary.iter().chain(&others).find_map(|span| {
            let (file, range) = self.place(span)?;
            let Instrumented { text, ranges } = self.files.get(&*file)?;
            if code == NOT_EXHAUSTIVE {
                let arms = arms_of_match(text, &range);
                // The arms for particular values come first.
                let mut last = ranges.iter().rev().filter(|(_, it)| {
                    self.mutants[*it].genre == Genre::MatchArm && !self.rejected.contains_key(it)
                });
                let is_in_arm = |range| arms.iter().any(|arm| is_within(range, arm));
                return last.find(|(range, _)| is_in_arm(range)).map(|(_, number)| *number);
            }
            let around = ranges.iter().filter(|(mutant, _)| is_within(&range, mutant));
            around.min_by_key(|(mutant, _)| mutant.len()).map(|(_, number)| *number)
        });
        Some((number?, reason))
    }

    /// The file and the range of a compiler's span, or of what it was expanded from.
    fn place(&self, span: &Value) -> Option<(String, Range<usize>)> {
        let file = span["file_name"].as_str()?;
        let byte = |name: &str| span[name].as_u64()?.try_into().ok();
        if self.files.contains_key(file) {
            return Some((file.to_owned(), byte("byte_start")?..byte("byte_end")?));
        }
        self.place(span["expansion"].get("span")?)
    }
}

fn is_within(inner: &Range<usize>, outer: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// Finds the arms of the match of the expression in this range, each without its body, in which another
/// match may be.
fn arms_of_match(text: &str, of: &Range<usize>) -> Vec<Range<usize>> {
    struct Finder<'a> {
        of: &'a Range<usize>,
        arms: Vec<Range<usize>>,
    }
    impl Visit<'_> for Finder<'_> {
        fn visit_expr_match(&mut self, expression: &syn::ExprMatch) {
            if expression.expr.span().byte_range() == *self.of {
                let arms = expression.arms.iter();
                let start = |tokens: &dyn Spanned| tokens.span().byte_range().start;
                self.arms = arms.map(|arm| start(&arm.pat)..start(&arm.fat_arrow_token)).collect();
            }
            visit::visit_expr_match(self, expression);
        }
    }
    let mut finder = Finder { of, arms: Vec::new() };
    // What the compiler has read can be read here, too.
    if let Ok(file) = syn::parse_file(text) {
        finder.visit_file(&file);
    }
    finder.arms
}

fn write(path: &Path, contents: &[u8]) -> Result {
    fs::create_dir_all(path.parent().expect("a file is in a folder"))?;
    Ok(fs::write(path, contents)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree<'a>(source: &str, mutants: &'a [Mutant]) -> Tree<'a> {
        let numbered: Vec<_> = mutants.iter().enumerate().collect();
        let files = BTreeMap::from([("src/lib.rs", instrument(source, &numbered).unwrap())]);
        Tree { folder: PathBuf::new(), mutants, rejected: BTreeMap::new(), files }
    }

    /// An error whose primary span is the first place of `at` in the instrumented text.
    fn error(tree: &Tree<'_>, code: &str, at: &str) -> Value {
        let start = tree.files["src/lib.rs"].text.find(at).unwrap();
        serde_json::json!({ "code": { "code": code }, "spans": [{
            "file_name": "src/lib.rs", "is_primary": true, "byte_start": start, "byte_end": start + at.len(),
        }]})
    }

    #[test]
    fn error_is_blamed_on_the_mutant_around_it() {
        let mutants = [
            Mutant::at(Genre::FnValue, "Default::default()", 1, 15),
            Mutant::at(Genre::BinaryOperator, "-", 1, 17),
        ];
        let tree = tree("fn f() -> T { a + b }", &mutants);
        let blamed = |code, at| tree.blame(&error(&tree, code, at));
        assert_eq!(blamed("E0277", "Default::default()"), Some((0, Rejection::DoesNotCompile)));
        assert_eq!(blamed("E0369", "a - b"), Some((1, Rejection::DoesNotCompile)));
        assert_eq!(
            blamed("E0015", "::mutant_switch::is_on(0)"),
            Some((0, Rejection::NotSwitchable))
        );
        assert_eq!(blamed("E0412", "T"), None);
    }

    #[test]
    fn match_that_is_not_exhaustive_loses_its_last_removed_arm() {
        let mutants = [20, 28, 57].map(|column| Mutant::at(Genre::MatchArm, "", 1, column));
        let mut tree =
            tree("fn f() { match a { A => 1, Some(_) => match b { C => 2, D => 3 } } }", &mutants);
        let error = error(&tree, NOT_EXHAUSTIVE, "a");
        assert_eq!(tree.blame(&error), None, "not the `a` of a match");
        let start = tree.files["src/lib.rs"].text.find("a {").unwrap();
        let mut error = error;
        error["spans"][0]["byte_start"] = start.into();
        error["spans"][0]["byte_end"] = (start + 1).into();
        assert_eq!(tree.blame(&error), Some((1, Rejection::DoesNotCompile)));
        tree.rejected.insert(1, Rejection::DoesNotCompile);
        assert_eq!(tree.blame(&error), Some((0, Rejection::DoesNotCompile)));
    }
}
