use crate::ServerError;
use std::env;
use std::path::PathBuf;

/// Finds a program that must be installed.
pub(crate) fn require(name: &str, install: &'static str) -> Result<PathBuf, ServerError> {
    find(name)
        .ok_or_else(|| ServerError::Missing { what: format!("the program `{name}`"), install })
}

/// Finds the first file of this name in the folders of `PATH`.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}
