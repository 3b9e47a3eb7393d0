//! The first judge and the second one agree.

use std::collections::BTreeSet;

use campanile_history::{Excerpt, History, Verdict, judge};

use crate::random::Files;
use crate::second::{self, Findings};
use crate::simulator::{Recorded, with_texts};

/// Judges a history, given by the names and the contents of its files, with both judges. Returns
/// nothing if neither can read it.
///
/// # Errors
/// Returns what the judges say if they disagree.
pub(crate) fn compare(files: &[(&str, &str)]) -> Result<Option<Verdict>, String> {
    let first = History::parse(files.iter().copied()).map(|history| judge(&history));
    let second = second::judge(files);
    match (first, second) {
        (Ok(verdict), Ok(second)) => {
            let first = findings(&verdict)?;
            if first == second {
                return Ok(Some(verdict));
            }
            Err(format!("first judge: {first:#?}\nsecond judge: {second:#?}"))
        }
        // Neither needs the same words for what it cannot read.
        (Err(_), Err(_)) => Ok(None),
        (Ok(_), Err(error)) => Err(format!("only the second judge cannot read this: {error}")),
        (Err(error), Ok(_)) => Err(format!("only the first judge cannot read this: {error}")),
    }
}

/// Judges a valid history with both judges.
///
/// # Panics
/// Panics if they disagree.
pub(crate) fn judge_both(files: &[(&str, &str)]) -> Verdict {
    compare(files).unwrap_or_else(|text| panic!("{text}")).expect("the history can be read")
}

/// Judges what was recorded with both judges, as [`judge_both`] does.
pub(crate) fn judge_recorded(recorded: &Recorded) -> Verdict {
    with_texts(recorded, judge_both)
}

/// Judges the random history of a seed, with both judges.
///
/// # Errors
/// Returns what they say if they disagree, and a part of the history for which they do.
pub(crate) fn compare_random(seed: u64, files: Files) -> Result<Option<Verdict>, String> {
    compare_files(&files).map_err(|_| {
        let files = shrink(files);
        let text = compare_files(&files).expect_err("the judges disagree on what is left");
        let files: String =
            files.iter().map(|(name, lines)| format!("{name}:\n{}", lines.concat())).collect();
        format!("seed {seed}:\n{files}{text}")
    })
}

fn compare_files(files: &Files) -> Result<Option<Verdict>, String> {
    let texts: Vec<_> = files.iter().map(|(name, lines)| (name, lines.concat())).collect();
    let texts: Vec<_> = texts.iter().map(|(name, text)| (&***name, &**text)).collect();
    compare(&texts)
}

/// Removes lines as long as the judges disagree.
fn shrink(mut files: Files) -> Files {
    'smaller: loop {
        for file in 0..files.len() {
            for line in 0..files[file].1.len() {
                let mut smaller = files.clone();
                smaller[file].1.remove(line);
                if compare_files(&smaller).is_err() {
                    files = smaller;
                    continue 'smaller;
                }
            }
        }
        return files;
    }
}

/// Returns what the first judge found, in the form of the second one. Nothing is found twice.
fn findings(verdict: &Verdict) -> Result<Findings, String> {
    let place = |excerpt: &Excerpt| (excerpt.file.clone(), excerpt.line);
    let violations = verdict.violations.iter().map(|it| (it.rule.name(), it.subject.clone()));
    let causes = verdict.reruns.iter().map(|rerun| {
        (rerun.key.clone(), rerun.cause.name(), place(&rerun.first), place(&rerun.again))
    });
    let (violations, causes): (BTreeSet<_>, BTreeSet<_>) = (violations.collect(), causes.collect());
    if (violations.len(), causes.len()) != (verdict.violations.len(), verdict.reruns.len()) {
        return Err(format!("the first judge found something twice: {verdict}"));
    }
    Ok(Findings { violations, causes, events: verdict.events })
}
