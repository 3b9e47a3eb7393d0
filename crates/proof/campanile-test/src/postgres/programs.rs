//! Locates the server's programs and runs them as a user other than root.

use campanile_programs::postgres;

use crate::{ServerError, program};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::{env, io};

const INSTALL: &str = "install it with `apt-get install postgresql`, or `cargo xtask install` in \
    Campanile's checkout";

/// The user created by Debian's package. It runs the server when the test runs as root, because the
/// server refuses to run as root.
const SERVER_USER: &str = "postgres";

/// The arguments of `setpriv` before a program that is killed when the test's process dies.
const DEATH_SIGNAL: [&str; 3] = ["--pdeathsig", "KILL", "--"];

/// The folder that contains `postgres`, `initdb` and the other programs.
#[derive(Clone, Debug)]
pub(super) struct Programs(PathBuf);

impl Programs {
    /// Finds the newest installed version.
    pub(super) fn find() -> Result<Self, ServerError> {
        let missing =
            || ServerError::Missing { what: "the program `postgres`".to_owned(), install: INSTALL };
        let found =
            postgres::newest().or_else(|| program::find("postgres")?.parent().map(Path::to_owned));
        found.map(Self).ok_or_else(missing)
    }

    /// Creates a command that runs a program as a permitted user.
    fn command(&self, name: &str) -> Command {
        let mut words = as_server_user();
        words.push(self.0.join(name).into());
        command(words)
    }

    /// Creates a command that runs the server. It has shared memory segments of its own, if the
    /// kernel permits it. Otherwise a server that is killed leaves one behind, and after 4096 of them
    /// no server starts any more.
    pub(super) fn server_command(&self) -> Command {
        let mut words = own_segments().clone();
        words.extend(as_server_user());
        words.push(self.0.join("postgres").into());
        command(words)
    }

    /// Whether servers have shared memory segments of their own.
    #[cfg(test)]
    pub(super) fn isolates_memory() -> bool {
        !own_segments().is_empty()
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

/// The beginning of a command that runs as the server's user.
fn as_server_user() -> Vec<OsString> {
    if !is_root() {
        return Vec::new();
    }
    let user = ["--reuid", SERVER_USER, "--regid", SERVER_USER, "--clear-groups"];
    // Changing the user clears the parent-death signal that was set before.
    ["setpriv"].into_iter().chain(user).chain(DEATH_SIGNAL).map(OsString::from).collect()
}

/// The beginning of a command that has shared memory segments of its own, which end with it. Empty
/// if that is not permitted.
fn own_segments() -> &'static Vec<OsString> {
    static WORDS: LazyLock<Vec<OsString>> = LazyLock::new(|| {
        // Without root, only a user namespace permits it.
        let user = (!is_root()).then_some("--map-current-user");
        let unshare = ["unshare"].into_iter().chain(user).chain(["--ipc", "--", "setpriv"]);
        // A user namespace also clears the signal.
        let words: Vec<_> = unshare.chain(DEATH_SIGNAL).map(OsString::from).collect();
        let output = command(words.iter().cloned().chain(["true".into()])).output();
        if output.is_ok_and(|output| output.status.success()) { words } else { Vec::new() }
    });
    &WORDS
}

/// Creates a command from its words, of which there is at least one.
fn command(words: impl IntoIterator<Item = OsString>) -> Command {
    let mut words = words.into_iter();
    let mut command = Command::new(words.next().expect("a command has a program"));
    command.args(words);
    command
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
