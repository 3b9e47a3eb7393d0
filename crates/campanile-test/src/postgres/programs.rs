//! Where the server's programs are, and how they are run: as anybody but root.

use super::folder;
use crate::{ServerError, program};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, io};

const INSTALL: &str = "install it with `apt-get install postgresql`, or `cargo xtask install` in \
    Campanile's checkout";

/// The user that Debian's package makes, for root: the server refuses to run as root.
const USER: &str = "postgres";

/// The folder of `postgres`, `initdb` and the others.
#[derive(Clone, Debug)]
pub(super) struct Programs(PathBuf);

impl Programs {
    /// The newest version that is installed.
    pub(super) fn find() -> Result<Self, ServerError> {
        let missing =
            || ServerError::Missing { what: "the program `postgres`".to_owned(), install: INSTALL };
        let found =
            folder::newest().or_else(|| program::find("postgres")?.parent().map(Path::to_owned));
        found.map(Self).ok_or_else(missing)
    }

    /// One of them, to be run by a user who may.
    pub(super) fn command(&self, name: &str) -> Command {
        let program = self.0.join(name);
        if !is_root() {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        // To change the user takes back what was asked for before: to die with the parent.
        command.args(["--reuid", USER, "--regid", USER, "--clear-groups", "--pdeathsig", "KILL"]);
        command.arg("--").arg(program);
        command
    }

    /// Runs one of them to its end, and gives what it printed.
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

    /// Gives the file or folder to the user who runs the programs.
    pub(super) fn hand_over(path: &Path) -> io::Result<()> {
        if !is_root() {
            return Ok(());
        }
        let status = Command::new("chown").arg(format!("{USER}:")).arg(path).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("chown: {status}"))) }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
