//! Chooses at run time which mutant is active. The instrumented packages depend on it.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static SWITCH: OnceLock<Switch> = OnceLock::new();

struct Switch {
    /// The number of the active mutant.
    active: Option<usize>,
    /// Where to write the number of each mutant that is reached, and which were.
    trace: Option<(File, Vec<AtomicBool>)>,
}

impl Switch {
    fn from_env() -> Self {
        let active = env::var("MUTANT").ok().and_then(|number| number.parse().ok());
        let trace = env::var_os("MUTANT_TRACE").map(|path| {
            let file = OpenOptions::new().append(true).create(true).open(path).unwrap();
            let count = env::var("MUTANT_COUNT").unwrap().parse().unwrap();
            (file, (0..count).map(|_| AtomicBool::new(false)).collect())
        });
        Self { active, trace }
    }
}

pub fn is_on(mutant: usize) -> bool {
    let switch = SWITCH.get_or_init(Switch::from_env);
    if let Some((file, reached)) = &switch.trace {
        if !reached[mutant].swap(true, Ordering::Relaxed) {
            // One write for each line: other processes of the test append to the same file.
            let mut file = file;
            file.write_all(format!("{mutant}\n").as_bytes()).unwrap();
        }
    }
    switch.active == Some(mutant)
}
