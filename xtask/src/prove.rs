//! Runs the proofs, and writes what they saw into the evidence.

use crate::Result;
use crate::document::Block;
use crate::progress::{Progress, cargo};
use std::ffi::OsString;
use std::time::Duration;

/// What can be proven: the areas, each with cargo's arguments for the program that prints what it saw
/// as Markdown.
const AREAS: &[Area] = &[
    ("model", &["--package", "campanile-model", "--"]),
    ("history", &["--package", "campanile-history", "--example", "prove", "--"]),
    ("simulation", &["--package", "xtask", "--", "simulate"]),
    ("everything", &["--package", "xtask", "--", "everything"]),
    ("fuzz", &["--package", "xtask", "--", "fuzz"]),
    ("mutation", &["--package", "xtask", "--", "mutation"]),
];

/// The name of an area, and the arguments.
type Area = (&'static str, &'static [&'static str]);

/// The document that the command writes its part of.
const EVIDENCE: &str = "docs/evidence.md";

/// The time limit of building and running one program: several times its duration at full size.
const TIMEOUT: Duration = Duration::from_secs(6 * 60 * 60);

/// Runs the programs of one area or of all, and writes what they printed into the document.
///
/// The document stays as it is if a program fails, because it then found a violation or nothing.
pub(crate) fn prove(progress: &Progress, args: &[OsString]) -> Result {
    let Selection { areas, size } = Selection::parse(args)?;
    let size = size.name();
    for (area, program) in areas {
        let mut command = cargo();
        command.args(["run", "--release"]).args(program).args(["--size", size]);
        let (name, written_by) = (format!("prove {area}"), format!("prove {area} --size {size}"));
        let block = Block { name: &name, documents: &[EVIDENCE], written_by: &written_by };
        block.write(progress, &mut command, TIMEOUT)?;
    }
    Ok(())
}

/// How thoroughly to explore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Small,
    Full,
}

impl Size {
    /// Parses the value of `--size`.
    pub(crate) fn parse(value: Option<&str>) -> Result<Self> {
        match value {
            Some("small") => Ok(Self::Small),
            Some("full") => Ok(Self::Full),
            _ => Err("expected --size small or --size full".into()),
        }
    }

    /// Parses the arguments of a command that has only this option, `[--size small|full]`. The default is
    /// small.
    pub(crate) fn from_args(args: &[OsString]) -> Result<Self> {
        let args: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
        match &args[..] {
            [] => Ok(Self::Small),
            [option, size] if option == "--size" => Self::parse(Some(size)),
            _ => Self::parse(None),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Full => "full",
        }
    }
}

/// The areas to prove, and how thoroughly.
#[derive(Debug)]
struct Selection {
    areas: Vec<Area>,
    size: Size,
}

impl Selection {
    /// Parses `[AREA] [--size small|full]`. The default is all areas at full size.
    fn parse(args: &[OsString]) -> Result<Self> {
        let mut selection = Self { areas: AREAS.to_vec(), size: Size::Full };
        let mut args = args.iter().map(|arg| arg.to_string_lossy());
        while let Some(arg) = args.next() {
            if arg == "--size" {
                selection.size = Size::parse(args.next().as_deref())?;
                continue;
            }
            selection.areas.retain(|(area, _)| *area == arg);
            if selection.areas.is_empty() {
                let names: Vec<_> = AREAS.iter().map(|(area, _)| *area).collect();
                return Err(format!("no area `{arg}`; the areas are: {}", names.join(", ")).into());
            }
        }
        Ok(selection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Selection> {
        Selection::parse(&args.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn evidence_has_a_block_for_each_area() {
        for (area, _) in AREAS {
            let name = format!("prove {area}");
            let block = Block { name: &name, documents: &[EVIDENCE], written_by: "" };
            assert_ne!(block.read().unwrap(), [""]);
        }
    }

    #[test]
    fn area_and_size_are_selected_and_others_rejected() {
        let default = parse(&[]).unwrap();
        assert_eq!((default.areas.len(), default.size.name()), (AREAS.len(), "full"));
        let model = parse(&["model", "--size", "small"]).unwrap();
        assert_eq!((model.areas[0].0, model.size.name()), ("model", "small"));
        for args in [&["models"][..], &["--size"], &["--size", "huge"], &["model", "model2"]] {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }
}
