use crate::eventually;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::time::Duration;

/// How long the kernel may take to end killed processes on a busy machine.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Kills the children of a stopped process, and waits until they have closed their files.
///
/// A stopped process neither starts further children nor reaps these, so their ids cannot belong to
/// other processes. Finds no children where there is no `/proc`.
pub(super) fn kill_children(parent: Pid) {
    for (child, _) in children(parent) {
        // Fails only if the child has exited.
        let _ = kill_process(child, Signal::KILL);
    }
    let _ =
        eventually(EXIT_TIMEOUT, || children(parent).all(|(_, state)| state == "Z").then_some(()));
}

/// The children of a process, with their states. A process in state `Z` has closed its files.
fn children(parent: Pid) -> impl Iterator<Item = (Pid, String)> {
    let parent = parent.as_raw_nonzero().to_string();
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(move |entry| {
        let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The fields follow the program's name, which is in parentheses and may contain some.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.to_owned();
        (fields.next()? == parent).then_some((pid, state))
    })
}
