//! Locates the server's programs and runs them as a user other than root.

use super::folder;
use crate::{ServerError, program};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, io};

const INSTALL: &str = "install it with `apt-get install postgresql`, or `cargo xtask install` in \
    Campanile's checkout";

/// The user created by Debian's package. It runs the server when the test runs as root, because the
/// server refuses to run as root.
const SERVER_USER: &str = "postgres";

/// The folder that contains `postgres`, `initdb` and the other programs.
#[derive(Clone, Debug)]
pub(super) struct Programs(PathBuf);

impl Programs {
    /// Finds the newest installed version.
    pub(super) fn find() -> Result<Self, ServerError> {
        let missing =
            || ServerError::Missing { what: "the program `postgres`".to_owned(), install: INSTALL };
        let found =
            folder::newest().or_else(|| program::find("postgres")?.parent().map(Path::to_owned));
        found.map(Self).ok_or_else(missing)
    }

    /// Creates a command that runs a program as a permitted user.
    pub(super) fn command(&self, name: &str) -> Command {
        let program = self.0.join(name);
        if !is_root() {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        // Changing the user clears the parent-death signal that was set before, so it is set again
        // here.
        command.args([
            "--reuid",
            SERVER_USER,
            "--regid",
            SERVER_USER,
            "--clear-groups",
            "--pdeathsig",
            "KILL",
        ]);
        command.arg("--").arg(program);
        command
    }

    /// Runs a program to completion and reads its standard output.
    pub(super) fn run<S: AsRef<OsStr>>(
        &self,
        name: &str,
        args: impl IntoIterator<Item = S>,
    ) -> io::Result<String> {
        let output = self.command(name).args(args).current_dir(env::temp_dir()).output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("{name}: {}", text.trim_end())));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }

    /// Makes the user that runs the programs the owner of the file or folder.
    pub(super) fn chown_to_server_user(path: &Path) -> io::Result<()> {
        if !is_root() {
            return Ok(());
        }
        let status = Command::new("chown").arg(format!("{SERVER_USER}:")).arg(path).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("chown: {status}"))) }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
