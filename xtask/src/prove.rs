//! Runs the proofs, and writes what they saw into the evidence.

use crate::command::Size;
use crate::document::Block;
use crate::progress::{Progress, cargo};
use crate::{Result, everything, fuzz, install, simulation};
use clap::ValueEnum;
use std::io;
use std::time::Duration;

/// What can be proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Area {
    /// The protocol's step in every history of a few clients, and mutants of it: seconds, or minutes with
    /// gigabytes of memory
    Model,
    /// Many histories, judged by two independent judges: a minute, or minutes
    History,
    /// `cargo xtask simulate`: a minute, or half an hour
    Simulation,
    /// `cargo xtask everything`: minutes, or an hour
    Everything,
    /// `cargo xtask fuzz`: minutes, or half an hour
    Fuzz,
    /// `cargo xtask mutation`: minutes, or two hours and a half
    Mutation,
}

/// Cargo's arguments for the programs that print what they saw as Markdown.
const MODEL: &[&str] = &["run", "--release", "--package", "campanile-model", "--"];
const HISTORY: &[&str] =
    &["run", "--release", "--package", "campanile-history", "--example", "prove", "--"];
pub(crate) const MUTATION: &[&str] = &["run", "--quiet", "--package", "campanile-mutation", "--"];

/// The document that the command writes its part of.
const EVIDENCE: &str = "docs/evidence.md";

/// The time limit of building and running one program: several times its duration at full size.
const TIMEOUT: Duration = Duration::from_secs(6 * 60 * 60);

/// Proves one area or all, and writes what each saw into the document.
///
/// Its part of the document stays as it is if an area fails, because it then found a violation or nothing.
pub(crate) fn prove(progress: &Progress, area: Option<Area>, size: Size) -> Result {
    for area in Area::value_variants().iter().filter(|it| area.is_none_or(|area| area == **it)) {
        let (area, size_name) = (*area, name(&size));
        let (block, written_by) =
            (block_of(area), format!("{} --size {size_name}", block_of(area)));
        let block = Block { name: &block, documents: &[EVIDENCE], written_by: &written_by };
        block.write(|| run(progress, area, size))?;
    }
    Ok(())
}

/// Returns what an area saw, as lines of Markdown.
fn run(progress: &Progress, area: Area, size: Size) -> Result<Vec<String>> {
    let program = match area {
        Area::Model => MODEL,
        Area::History => HISTORY,
        Area::Mutation => {
            // Otherwise the tool would do this, and what it prints is what it saw.
            install::install(progress)?;
            MUTATION
        }
        Area::Simulation => return Ok(vec![simulation::simulate(progress, size)?]),
        Area::Everything => return Ok(vec![everything::everything(progress, size)?]),
        Area::Fuzz => return Ok(vec![fuzz::prove(progress, size)?]),
    };
    let mut command = cargo();
    command.args(program).args(["--size", &name(&size)]);
    progress.supervise(&mut command, TIMEOUT, &mut io::stdout())?.check("the program")
}

/// The name of an area's block in the document.
fn block_of(area: Area) -> String {
    format!("prove {}", name(&area))
}

fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_has_a_block_for_each_area() {
        for area in Area::value_variants() {
            let name = block_of(*area);
            let block = Block { name: &name, documents: &[EVIDENCE], written_by: "" };
            assert_ne!(block.read().unwrap(), [""]);
        }
    }
}
