//! Where Debian has Postgres. The project's `xtask` compiles this file too: it installs it.

use std::fs;
use std::path::PathBuf;

/// The folder of the newest version's programs, which is in nobody's `PATH`.
pub(crate) fn newest() -> Option<PathBuf> {
    let version = |folder: &PathBuf| folder.file_name()?.to_str()?.parse::<u32>().ok();
    let folders = fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|entry| entry.path());
    let has_server = |folder: &PathBuf| folder.join("bin/postgres").is_file();
    Some(folders.filter(has_server).max_by_key(version)?.join("bin"))
}
