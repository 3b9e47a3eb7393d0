use crate::{ServerError, program};
use std::path::PathBuf;
use std::process::Command;
use std::{fs, io};
use tempfile::TempDir;

const INSTALL: &str = "install it with `apt-get install openssl`";

/// A certificate authority, and the certificates that it has signed, for servers and clients with
/// TLS. The files are PEM, in a folder that is removed on drop.
///
/// ```
/// use campanile_test::Authority;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let authority = Authority::new()?;
/// authority.sign("server", "IP:127.0.0.1")?;
/// let (certificate, key) = (authority.read("server.crt")?, authority.read("server.key")?);
/// assert_ne!(certificate, authority.read("ca.crt")?);
/// # drop(key);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Authority {
    folder: TempDir,
}

impl Authority {
    /// Creates an authority, whose certificate is in the file `ca.crt`.
    ///
    /// # Errors
    ///
    /// Fails with [`ServerError::Missing`] if the program `openssl` is not installed.
    pub fn new() -> Result<Self, ServerError> {
        let authority = Self { folder: tempfile::tempdir()? };
        let name = fastrand::u64(..);
        authority.openssl(&format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout ca.key -out ca.crt"
        ))?;
        Ok(authority)
    }

    /// Creates a certificate with this subject alternative name, such as `IP:127.0.0.1`, in the file
    /// `NAME.crt`, and its private key in `NAME.key`.
    ///
    /// # Errors
    ///
    /// Fails with the output of `openssl`.
    pub fn sign(&self, name: &str, alternative: &str) -> Result<(), ServerError> {
        fs::write(self.path("extensions"), format!("subjectAltName={alternative}\n"))?;
        self.openssl(&format!(
            "req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
        ))?;
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
             -extfile extensions -out {name}.crt"
        ))
    }

    /// The path of a file.
    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Fails if there is no such file.
    pub fn read(&self, file: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(file))
    }

    fn openssl(&self, arguments: &str) -> Result<(), ServerError> {
        let openssl = program::require("openssl", INSTALL)?;
        let mut command = Command::new(openssl);
        let output =
            command.args(arguments.split_whitespace()).current_dir(self.folder.path()).output()?;
        if output.status.success() {
            return Ok(());
        }
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(ServerError::Exited { server: "openssl".to_owned(), status: output.status, log })
    }
}
