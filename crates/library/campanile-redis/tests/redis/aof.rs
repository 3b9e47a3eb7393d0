//! A server's append-only file that loses its end.

use std::fs::{self, OpenOptions};

use campanile_test::{RedisServer, RedisServerBuilder};
use tempfile::TempDir;

/// A server that keeps its append-only file in this folder, and accepts that its end is missing,
/// which is Redis's default. Each write is in the file before it is acknowledged, so that only
/// [`cut`] loses some.
pub(crate) fn server(folder: &TempDir) -> RedisServerBuilder {
    let folder = folder.path().to_str().unwrap();
    let builder = RedisServer::builder().append_only(true).config("dir", folder);
    builder.config("appendfsync", "always").config("aof-load-truncated", "yes")
}

/// Removes the last bytes of the file that receives the writes.
pub(crate) fn cut(folder: &TempDir, bytes: u64) {
    let files = fs::read_dir(folder.path().join("appendonlydir")).unwrap();
    let mut files = files.map(|file| file.unwrap().path());
    let is_log = |file: &std::path::PathBuf| file.to_str().unwrap().ends_with(".incr.aof");
    let file = files.find(is_log).expect("the server has an append-only file");
    let file = OpenOptions::new().write(true).open(file).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(len - bytes).unwrap();
}
