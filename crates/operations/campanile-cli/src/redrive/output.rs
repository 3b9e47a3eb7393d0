//! The printed results.

use campanile_admin::AdminError;
use campanile_admin::redrive::{ReasonCount, RedrivePreview, RedriveSummary};
use serde::Serialize;

use super::Arguments;
use crate::print::{print, print_json};

/// The number of reasons that are printed as text.
const SHOWN_REASONS: usize = 20;

pub(super) fn print_preview(preview: &RedrivePreview, json: bool) -> Result<(), AdminError> {
    if json {
        return print_json(preview);
    }
    let sum = |counts: &[ReasonCount]| counts.iter().map(|count| count.letters).sum::<u64>();
    for (letters, what) in [
        (preview.reopened, "would be reopened and produced back"),
        (sum(&preview.produced), "would only be produced back"),
        (sum(&preview.skipped), "would be skipped"),
        (sum(&preview.deferred), "would be deferred"),
        (sum(&preview.parked), "would be parked"),
        (preview.filtered, "not selected"),
    ] {
        print(&format!("{letters:>9}  {what}"))?;
    }
    if let Some(text) = handled_before(preview.handled_before) {
        print(&text)?;
    }
    print_reasons("Why letters were given up:", &preview.reasons)?;
    print_reasons("Why letters would only be produced back:", &preview.produced)?;
    print_reasons("Why letters would be skipped:", &preview.skipped)?;
    print_reasons("Why letters would be deferred:", &preview.deferred)?;
    print_reasons("Why letters would be parked:", &preview.parked)
}

fn print_reasons(title: &str, reasons: &[ReasonCount]) -> Result<(), AdminError> {
    if reasons.is_empty() {
        return Ok(());
    }
    print(&format!("\n{title}"))?;
    for ReasonCount { reason, letters, example, .. } in reasons.iter().take(SHOWN_REASONS) {
        print(&format!("{letters:>9}  {}  ({example})", reason.escape_debug()))?;
    }
    if let Some(more) = reasons.get(SHOWN_REASONS..).filter(|more| !more.is_empty()) {
        let letters: u64 = more.iter().map(|count| count.letters).sum();
        print(&format!("{letters:>9}  {} other reasons; --json prints all", more.len()))?;
    }
    Ok(())
}

pub(super) fn print_summary(
    arguments: &Arguments,
    summary: &RedriveSummary,
) -> Result<(), AdminError> {
    if arguments.json {
        #[derive(Serialize)]
        struct Line<'a> {
            summary: &'a RedriveSummary,
        }
        return print_json(&Line { summary });
    }
    let RedriveSummary { reopened, produced, skipped, deferred, parked, filtered, .. } = summary;
    let mut text = format!(
        "{reopened} reopened, {produced} only produced, {skipped} skipped, {deferred} deferred, \
         {parked} parked, {filtered} filtered"
    );
    if *deferred > 0 {
        text.push_str("\nrun again later for the deferred letters");
    }
    if *parked > 0 {
        text.push_str(&format!(
            "\nthe parked letters stay in {}; once their cause is fixed, --group NEW-NAME handles them \
             again, and all others that the filters select",
            arguments.topic
        ));
        if arguments.parking_topic.is_none() {
            text.push_str("; --parking-topic copies them to a topic of their own");
        }
    }
    if let Some(before) = handled_before(summary.handled_before) {
        text.push_str(&format!("\n{before}"));
    }
    print(&text)
}

fn handled_before(letters: u64) -> Option<String> {
    let text = "--group NEW-NAME handles them again";
    (letters > 0).then(|| format!("handled by earlier runs: {letters} letters at most; {text}"))
}
