use super::programs::Programs;
use super::server::PgServer;
use crate::{ServerError, port};
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// How a [`PgServer`] is started; made by [`PgServer::builder`].
#[derive(Clone, Debug, Default)]
pub struct PgServerBuilder {
    port: Option<u16>,
    pub(super) password: Option<String>,
    is_durable: bool,
    /// Of TLS, as PEM: the certificate, its key, and the authority of the clients.
    tls: Option<[Vec<u8>; 3]>,
    lines: String,
}

impl PgServerBuilder {
    /// Whether a commit is on the disk before it is acknowledged, as it is by Postgres's own default.
    /// Default: no, because most tests want speed, and what a killed process has written stays.
    pub fn durable(mut self, durable: bool) -> Self {
        self.is_durable = durable;
        self
    }

    /// The port on 127.0.0.1. Default: a free one, and another one if it is taken in between; a
    /// port of your own that is taken is an error.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// A password for the superuser, which then everybody needs who comes over TCP. Default: none.
    ///
    /// # Panics
    ///
    /// When it has characters that a URL or a line of SQL would have to escape: letters and digits
    /// are enough here.
    pub fn password(mut self, password: &str) -> Self {
        assert!(
            password.bytes().all(|b| b.is_ascii_alphanumeric()),
            "a test's password has letters and digits only"
        );
        self.password = Some(password.to_owned());
        self
    }

    /// Offers TLS with this certificate and its private key, and demands a certificate of each client
    /// that this authority has signed, if there is one (all PEM). Default: no TLS.
    pub fn tls(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
        clients: Option<Vec<u8>>,
    ) -> Self {
        self.tls = Some([certificate.into(), key.into(), clients.unwrap_or_default()]);
        self
    }

    /// One line of `postgresql.conf`, such as `("max_connections", "10")`, after the lines of this
    /// builder, so that it wins. Default: none.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        writeln!(self.lines, "{name} = '{value}'").expect("a string takes every line");
        self
    }

    /// Makes a database cluster, starts the server and waits until it answers.
    ///
    /// # Errors
    ///
    /// [`ServerError::Missing`] when Postgres is not installed, else what kept it from starting, with
    /// the end of its log.
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

    /// What is added to `postgresql.conf`.
    pub(super) fn text(&self, port: u16, folder: &Path) -> String {
        let is_durable = if self.is_durable { "on" } else { "off" };
        format!(
            "listen_addresses = '127.0.0.1'\n\
             port = {port}\n\
             unix_socket_directories = '{}'\n\
             shared_buffers = '64MB'\n\
             fsync = {is_durable}\n\
             full_page_writes = {is_durable}\n\
             {}{}",
            folder.display(),
            self.tls_lines(),
            self.lines,
        )
    }

    /// Puts what TLS needs beside the data; the key is for nobody but the server.
    pub(super) fn write_certificates(&self, data: &Path) -> io::Result<()> {
        for (name, text) in FILES.into_iter().zip(self.tls.iter().flatten()) {
            let path = data.join(name);
            fs::write(&path, text)?;
            fs::set_permissions(&path, Permissions::from_mode(0o600))?;
            Programs::hand_over(&path)?;
        }
        Ok(())
    }

    /// The text of `pg_hba.conf`: the socket lies in a folder that is nobody else's.
    pub(super) fn access(&self) -> String {
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

/// Beside the data: the certificate, its key, the authority of the clients.
const FILES: [&str; 3] = ["server.crt", "server.key", "clients.crt"];
