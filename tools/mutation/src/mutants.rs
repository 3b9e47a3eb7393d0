//! The mutants, as cargo-mutants lists them.

use crate::PACKAGES;
use serde_json::Value;
use std::process::Stdio;
use xtask::Result;
use xtask::progress::cargo;

/// A change of one expression, as cargo-mutants lists it.
#[derive(Clone, Debug)]
pub(crate) struct Mutant {
    pub(crate) package: String,
    pub(crate) file: String,
    /// How cargo-mutants names it: its place and what is changed.
    pub(crate) name: String,
    pub(crate) genre: Genre,
    pub(crate) replacement: String,
    /// The return type of its function.
    pub(crate) return_type: String,
    /// Both from 1, the column in characters.
    pub(crate) line: usize,
    pub(crate) column: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Genre {
    /// The function returns this value.
    FnValue,
    BinaryOperator,
    /// The operator is removed.
    UnaryOperator,
    /// The arm is removed.
    MatchArm,
    MatchArmGuard,
    /// The field is removed from a struct expression that has a base.
    StructField,
}

/// Lists the mutants of these packages, and the number of others, which `.cargo/mutants.toml` excludes.
///
/// # Errors
///
/// Fails if cargo-mutants is not installed.
pub(crate) fn list(packages: &[&str]) -> Result<(Vec<Mutant>, usize)> {
    let (mutants, all) = (list_with(packages, &[])?, list_with(packages, &["--no-config"])?);
    let excluded = all.len() - mutants.len();
    Ok((mutants, excluded))
}

fn list_with(packages: &[&str], options: &[&str]) -> Result<Vec<Mutant>> {
    let mut command = cargo();
    command.args(["mutants", "--list", "--json"]).args(options).stderr(Stdio::inherit());
    command.args(packages.iter().flat_map(|package| ["--package", package]));
    let output = command.output()?;
    if !output.status.success() {
        return Err("`cargo mutants --list` failed; if it is not installed: `cargo install \
                    cargo-mutants --version '^27' --locked`"
            .into());
    }
    parse(&output.stdout)
}

fn parse(json: &[u8]) -> Result<Vec<Mutant>> {
    let list: Vec<Value> = serde_json::from_slice(json)?;
    let mut mutants: Vec<_> = list.iter().map(Mutant::parse).collect::<Result<_>>()?;
    // In the order of dependencies, which the packages are built in.
    mutants.sort_by_key(|mutant| PACKAGES.iter().position(|package| *package == mutant.package));
    Ok(mutants)
}

impl Mutant {
    fn parse(value: &Value) -> Result<Self> {
        let text = |value: &Value| {
            value.as_str().map(str::to_owned).ok_or("a mutant without a text that is expected")
        };
        let start = &value["span"]["start"];
        let number = |value: &Value| {
            value.as_u64().and_then(|n| n.try_into().ok()).ok_or("a mutant without a place")
        };
        let genre = match &*text(&value["genre"])? {
            "FnValue" => Genre::FnValue,
            "BinaryOperator" => Genre::BinaryOperator,
            "UnaryOperator" => Genre::UnaryOperator,
            "MatchArm" => Genre::MatchArm,
            "MatchArmGuard" => Genre::MatchArmGuard,
            "StructField" => Genre::StructField,
            other => {
                return Err(format!("cargo-mutants lists mutants of a new genre, {other}").into());
            }
        };
        Ok(Self {
            package: text(&value["package"])?,
            file: text(&value["file"])?,
            name: text(&value["name"])?,
            genre,
            replacement: text(&value["replacement"])?,
            return_type: value["function"]["return_type"].as_str().unwrap_or_default().to_owned(),
            line: number(&start["line"])?,
            column: number(&start["column"])?,
        })
    }
}

#[cfg(test)]
impl Mutant {
    /// A mutant at this place in `src/lib.rs`.
    pub(crate) fn at(genre: Genre, replacement: &str, line: usize, column: usize) -> Self {
        Self {
            package: "p".to_owned(),
            file: "src/lib.rs".to_owned(),
            name: String::new(),
            genre,
            replacement: replacement.to_owned(),
            return_type: String::new(),
            line,
            column,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutant_is_parsed_from_the_list_of_cargo_mutants() {
        let json = r#"[{
            "file": "crates/library/campanile-core/src/a.rs",
            "function": { "function_name": "f", "return_type": "-> bool", "span": null },
            "genre": "FnValue",
            "name": "crates/library/campanile-core/src/a.rs:2:5: replace f -> bool with true",
            "package": "campanile-core",
            "replacement": "true",
            "span": { "start": { "line": 2, "column": 5 }, "end": { "line": 3, "column": 6 } }
        }]"#;
        let mutants = parse(json.as_bytes()).unwrap();
        let [mutant] = &mutants[..] else { panic!("{mutants:?}") };
        assert_eq!((mutant.genre, mutant.line, mutant.column), (Genre::FnValue, 2, 5));
        assert_eq!((&*mutant.return_type, &*mutant.replacement), ("-> bool", "true"));
        assert!(parse(json.replace("FnValue", "Novelty").as_bytes()).is_err());
    }
}
