//! Judges a history, and prints the verdict: `cargo run -p campanile-history --example verify -- HISTORY
//! [--json]`. Exits with 0 if the history is sound, 1 if it violates a rule, and 2 if it cannot be read.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use campanile_history::{History, judge};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (path, is_json) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [path] => (path, false),
        [path, "--json"] | ["--json", path] => (path, true),
        _ => {
            eprintln!("usage: verify HISTORY [--json]");
            return Ok(ExitCode::from(2));
        }
    };
    let verdict = match History::read(path) {
        Ok(history) => judge(&history),
        Err(error) => {
            let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
            eprintln!("error: {error}{source}");
            return Ok(ExitCode::from(2));
        }
    };
    let text = if is_json { serde_json::to_string(&verdict)? } else { verdict.to_string() };
    // Without a reader, the exit code still says what was found.
    let _ = writeln!(io::stdout(), "{text}");
    Ok(ExitCode::from(u8::from(!verdict.is_sound())))
}
