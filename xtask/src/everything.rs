//! Runs the campaign of all faults at once.

use crate::Result;
use crate::command::Size;
use crate::progress::Progress;
use crate::soak::EVERYTHING;
use std::io;

/// Runs the campaign, and returns what happened as Markdown. Fails if there was a violation.
pub(crate) fn everything(progress: &Progress, size: Size) -> Result<String> {
    let tested = EVERYTHING.run(progress, size, &mut io::stderr())?;
    tested.check()?;
    to_markdown(&tested.lines)
}

/// Lists what each group of consumers saw, after all faults.
fn to_markdown(lines: &[String]) -> Result<String> {
    let after = |prefix: &'static str| lines.iter().filter_map(move |it| it.strip_prefix(prefix));
    let groups: Vec<_> = after("storm: everything, ").map(|group| format!("\n* {group}")).collect();
    let faults = after("everything: ").find(|line| line.contains(" faults and "));
    let (Some(faults), false) = (faults, groups.is_empty()) else {
        return Err("the campaign printed no group, or not its faults".into());
    };
    Ok(format!("{faults}.\n{}", groups.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_becomes_a_list_of_groups() {
        let lines = [
            "everything: seed 7",
            "storm: everything, by-key: 30 records, 0 violations; seed 7",
            "everything: 2 faults and 0 planned changes in 10s; seed 7",
        ];
        let lines = lines.map(str::to_owned);
        assert_eq!(
            to_markdown(&lines).unwrap(),
            "2 faults and 0 planned changes in 10s; seed 7.\n\n\
             * by-key: 30 records, 0 violations; seed 7"
        );
        assert!(to_markdown(&lines[..1]).is_err() && to_markdown(&lines[..2]).is_err());
    }
}
