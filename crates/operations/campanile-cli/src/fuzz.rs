//! Fuzz target: the arguments.

use clap::Parser;

use crate::options::parse_pair;
use crate::{Cli, Verb};

/// The bytes are arguments, each on a line. They are read, or refused with the exit code for wrong
/// usage.
#[test]
fn arguments() {
    bolero::check!(name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/arguments"))
        .for_each(|bytes: &[u8]| {
            let Ok(text) = str::from_utf8(bytes) else { return };
            if let Ok((name, value)) = parse_pair(text) {
                assert_eq!(name, name.trim());
                assert!(text.ends_with(&format!("={value}")));
            }
            match Cli::try_parse_from(std::iter::once("campanile").chain(text.lines())) {
                Ok(Cli { verb }) => convert(&verb),
                Err(error) => {
                    assert_eq!(error.exit_code(), if error.use_stderr() { 2 } else { 0 });
                    assert!(!error.to_string().is_empty());
                }
            }
        });
}

/// Converts the arguments as the verb does before it connects to anything.
fn convert(verb: &Verb) {
    let shown = match verb {
        Verb::List(arguments) => format!("{:?}", arguments.query()),
        Verb::Observe(arguments) => format!("{:?}", arguments.observe()),
        Verb::Purge(arguments) => format!("{:?}", arguments.purge()),
        Verb::Redrive(arguments) => arguments.redrive().group(),
        verb => format!("{verb:?}"),
    };
    assert!(!shown.is_empty());
}
