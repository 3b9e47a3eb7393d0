//! Runs the campaign of all faults at once.

use crate::Result;
use crate::install::install;
use crate::progress::Progress;
use crate::prove::Size;
use crate::soak::{self, Summary};
use crate::supervise::supervise;
use std::ffi::OsString;
use std::io;
use std::time::Duration;

/// The time limit of building and running the campaign: several times its duration at full size.
const TIMEOUT: Duration = Duration::from_secs(6 * 60 * 60);

/// What separates the columns of the table in the line of a group.
const SEPARATORS: &[&str] = &[
    ": ",
    " records, ",
    " keys, ",
    " runs again (",
    "), ",
    " violations; ",
    " processes, of which ",
    " were not live, ",
    " dead letters and copies, the longest stall ",
    "; seed ",
];

/// Runs the campaign, and prints what happened as Markdown. Fails if there was a violation.
pub(crate) fn everything(progress: &Progress, args: &[OsString]) -> Result {
    let size = Size::from_args(args)?;
    install(progress)?;
    let mut command = soak::EVERYTHING.command(size)?;
    progress.step("injecting all faults");
    let finished = supervise(&mut command, TIMEOUT, &mut io::stderr())?;
    if !finished.status.is_some_and(|status| status.success()) {
        return Err(
            format!("the campaign failed: {}", Summary::from_output(&finished.lines)).into()
        );
    }
    println!("{}", to_markdown(&finished.lines)?);
    Ok(())
}

fn to_markdown(lines: &[String]) -> Result<String> {
    let after = |prefix: &'static str| lines.iter().filter_map(move |it| it.strip_prefix(prefix));
    let groups: Vec<_> = after("storm: everything, ").filter_map(row).collect();
    let faults = after("everything: ").find(|line| line.contains(" faults and "));
    let (Some(faults), false) = (faults, groups.is_empty()) else {
        return Err("the campaign printed no group, or not its faults".into());
    };
    Ok(format!(
        "{faults}.\n\n\
         | group | records | keys | runs again | by cause | violations | processes | not live | dead letters and copies | longest stall |\n\
         |---|---|---|---|---|---|---|---|---|---|{}",
        groups.concat(),
    ))
}

/// Converts what a group printed into a row of the table.
fn row(mut line: &str) -> Option<String> {
    let mut row = "\n|".to_owned();
    for separator in SEPARATORS {
        let (cell, rest) = line.split_once(separator)?;
        row += &format!(" {cell} |");
        line = rest;
    }
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_becomes_a_table() {
        let lines = [
            "everything: seed 7",
            "storm: everything, by-key: 30 records, 20 keys, 3 runs again (1 failed, 2 suspended), 0 violations; \
             9 processes, of which 1 were not live, 4 dead letters and copies, the longest stall 8.9s; seed 7",
            "storm: everything, inbox: 10 records, 9 keys, 0 runs again (), 0 violations; 8 processes, of which 0 were not \
             live, 0 dead letters and copies, the longest stall 1.2s; seed 7",
            "everything: 2 faults and 0 planned changes in 10s: 1 broker killed, 1 process killed; the machine was never overloaded; seed 7",
        ];
        let lines = lines.map(str::to_owned);
        let text = to_markdown(&lines).unwrap();
        let expected = [
            "2 faults and 0 planned changes in 10s: 1 broker killed, 1 process killed; the machine was never overloaded; seed 7.",
            "| by-key | 30 | 20 | 3 | 1 failed, 2 suspended | 0 | 9 | 1 | 4 | 8.9s |",
            "| inbox | 10 | 9 | 0 |  | 0 | 8 | 0 | 0 | 1.2s |",
        ];
        for line in expected {
            assert!(text.lines().any(|it| it == line), "{text}");
        }
        for end in [1, 3] {
            assert!(to_markdown(&lines[..end]).is_err());
        }
    }
}
