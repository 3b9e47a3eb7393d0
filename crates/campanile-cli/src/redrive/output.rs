//! The printed results.

use campanile_admin::redrive::{ReasonCount, RedrivePreview, RedriveSummary};
use serde::Serialize;

use super::Arguments;

/// The number of reasons that are printed as text.
const SHOWN_REASONS: usize = 20;

pub(super) fn print_preview(preview: &RedrivePreview, json: bool) {
    if json {
        return print_json(preview);
    }
    let parked: u64 = preview.parked.iter().map(|count| count.letters).sum();
    println!("{:>9}  would be produced back, unless their keys prevent it", preview.candidates);
    println!("{parked:>9}  would be parked");
    if preview.filtered > 0 {
        println!("{:>9}  not selected", preview.filtered);
    }
    print_reasons("Why letters were given up:", &preview.reasons);
    print_reasons("Why letters would be parked:", &preview.parked);
}

fn print_reasons(title: &str, reasons: &[ReasonCount]) {
    if reasons.is_empty() {
        return;
    }
    println!("\n{title}");
    for ReasonCount { reason, letters, .. } in reasons.iter().take(SHOWN_REASONS) {
        println!("{letters:>9}  {}", reason.escape_debug());
    }
    if let Some(more) = reasons.get(SHOWN_REASONS..).filter(|more| !more.is_empty()) {
        let letters: u64 = more.iter().map(|count| count.letters).sum();
        println!("{letters:>9}  {} other reasons; --json prints all", more.len());
    }
}

pub(super) fn print_summary(arguments: &Arguments, summary: &RedriveSummary) {
    if arguments.json {
        #[derive(Serialize)]
        struct Line<'a> {
            summary: &'a RedriveSummary,
        }
        return print_json(&Line { summary });
    }
    let RedriveSummary { reopened, skipped, deferred, parked, filtered, .. } = summary;
    println!(
        "{reopened} reopened, {skipped} skipped, {deferred} deferred, {parked} parked, {filtered} filtered"
    );
    if *deferred > 0 {
        println!("run again later for the deferred letters");
    }
    if *parked > 0 && arguments.parking_topic.is_none() {
        println!(
            "the parked letters stay in {}; --parking-topic copies them to a topic of their own",
            arguments.topic
        );
    }
}

fn print_json(value: &impl Serialize) {
    match serde_json::to_string(value) {
        Ok(text) => println!("{text}"),
        Err(error) => eprintln!("error: cannot print the result: {error}"),
    }
}
