//! Location of Postgres on Debian.

use std::fs;
use std::path::PathBuf;

/// Finds the folder with the programs of the newest version. The folder is not in `PATH`.
pub fn newest() -> Option<PathBuf> {
    let version = |folder: &PathBuf| folder.file_name()?.to_str()?.parse::<u32>().ok();
    let folders = fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|entry| entry.path());
    let has_server = |folder: &PathBuf| folder.join("bin/postgres").is_file();
    Some(folders.filter(has_server).max_by_key(version)?.join("bin"))
}
