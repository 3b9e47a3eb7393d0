use super::programs::Programs;
use super::server::PgServer;
use crate::{ServerError, port};
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Builder for a [`PgServer`]; see [`PgServer::builder`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct PgServerBuilder {
    port: Option<u16>,
    pub(super) password: Option<String>,
    is_durable: bool,
    /// The TLS files as PEM: the certificate, its key, and the clients' certificate authority.
    tls: Option<[Vec<u8>; 3]>,
    lines: String,
}

impl PgServerBuilder {
    /// Sets whether a commit is written to disk before it is acknowledged, which is Postgres's own
    /// default. Default: no, because most tests prefer speed, and the writes of a killed process
    /// survive anyway.
    pub fn durable(mut self, durable: bool) -> Self {
        self.is_durable = durable;
        self
    }

    /// Sets the port on 127.0.0.1. Default: a free port, and another one if that port is taken
    /// before the server starts. A port set here must be free.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Sets a password for the superuser, which all TCP clients then need. Default: none.
    ///
    /// # Panics
    ///
    /// Panics if the password has characters that need escaping in a URL or in SQL. Only letters
    /// and digits are allowed.
    pub fn password(mut self, password: &str) -> Self {
        assert!(
            password.bytes().all(|b| b.is_ascii_alphanumeric()),
            "the password may only have letters and digits"
        );
        self.password = Some(password.to_owned());
        self
    }

    /// Enables TLS with this certificate and its private key. With an authority, each client must
    /// present a certificate signed by the authority. All values are PEM. Default: no TLS.
    pub fn tls(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
        clients: Option<Vec<u8>>,
    ) -> Self {
        self.tls = Some([certificate.into(), key.into(), clients.unwrap_or_default()]);
        self
    }

    /// Adds a line to `postgresql.conf`, such as `("max_connections", "10")`, after the builder's
    /// own lines, so that the added line takes precedence. Default: none.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        writeln!(self.lines, "{name} = '{value}'").expect("a string takes every line");
        self
    }

    /// Creates a database cluster, starts the server and waits until it answers.
    ///
    /// # Errors
    ///
    /// Fails with [`ServerError::Missing`] if Postgres is not installed, and otherwise with the
    /// reason why the server did not start and the end of its log.
    pub fn start(self) -> Result<PgServer, ServerError> {
        let programs = Programs::find()?;
        let launch = |port| PgServer::launch(self.clone(), programs.clone(), port);
        let server = match self.port {
            Some(port) => launch(port)?,
            None => port::with_free_port(launch)?,
        };
        if let Some(password) = &self.password {
            server.psql(&format!("ALTER ROLE postgres PASSWORD '{password}'"))?;
        }
        Ok(server)
    }

    /// Formats the lines to append to `postgresql.conf`.
    pub(super) fn render_config(&self, port: u16, folder: &Path) -> String {
        let is_durable = if self.is_durable { "on" } else { "off" };
        format!(
            "listen_addresses = '127.0.0.1'\n\
             port = {port}\n\
             unix_socket_directories = '{}'\n\
             shared_buffers = '64MB'\n\
             dynamic_shared_memory_type = 'mmap'\n\
             fsync = {is_durable}\n\
             full_page_writes = {is_durable}\n\
             {}{}",
            folder.display(),
            self.tls_lines(),
            self.lines,
        )
    }

    /// Writes the TLS files to the data folder. Only the server may read the key.
    pub(super) fn write_certificates(&self, data: &Path) -> io::Result<()> {
        for (name, text) in TLS_FILES.into_iter().zip(self.tls.iter().flatten()) {
            let path = data.join(name);
            fs::write(&path, text)?;
            fs::set_permissions(&path, Permissions::from_mode(0o600))?;
            Programs::chown_to_server_user(&path)?;
        }
        Ok(())
    }

    /// Formats `pg_hba.conf`. The socket needs no password because no other user can enter its
    /// folder.
    pub(super) fn render_hba(&self) -> String {
        let method = if self.password.is_some() { "scram-sha-256" } else { "trust" };
        let (kind, certificate) =
            if self.has_authority() { ("hostssl", " clientcert=verify-ca") } else { ("host", "") };
        format!(
            "local all all trust\n\
             local replication all trust\n\
             {kind} all all 127.0.0.1/32 {method}{certificate}\n"
        )
    }

    /// The names of the other files are the server's defaults.
    fn tls_lines(&self) -> &'static str {
        match &self.tls {
            Some(_) if self.has_authority() => "ssl = on\nssl_ca_file = 'clients.crt'\n",
            Some(_) => "ssl = on\n",
            None => "",
        }
    }

    fn has_authority(&self) -> bool {
        self.tls.as_ref().is_some_and(|[.., clients]| !clients.is_empty())
    }
}

/// File names in the data folder: the certificate, its key, and the clients' certificate authority.
const TLS_FILES: [&str; 3] = ["server.crt", "server.key", "clients.crt"];
