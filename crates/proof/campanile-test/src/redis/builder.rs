use campanile_programs::valkey;

use super::server::RedisServer;
use crate::{ServerError, port, program};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const INSTALL_REDIS: &str = "install it with `apt-get install redis-server`, or `cargo xtask install` \
    in Campanile's checkout";

const INSTALL_VALKEY: &str = "fetch it with `cargo xtask install` in Campanile's checkout, or set \
    CAMPANILE_VALKEY_SERVER to a `valkey-server`";

/// Builder for a [`RedisServer`]; see [`RedisServer::builder`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct RedisServerBuilder {
    pub(super) port: Option<u16>,
    pub(super) password: Option<String>,
    is_valkey: bool,
    append_only: bool,
    lines: String,
    pub(super) env: Vec<(OsString, OsString)>,
}

impl RedisServerBuilder {
    /// Starts Valkey instead of Redis: the `valkey-server` that `cargo xtask install` fetches in
    /// Campanile's checkout, or the one named by the environment variable
    /// `CAMPANILE_VALKEY_SERVER`.
    pub fn valkey(mut self) -> Self {
        self.is_valkey = true;
        self
    }

    /// Sets whether writes go to an append-only file, synced every second, so that they survive
    /// [`RedisServer::restart`]. Default: no, because most tests prefer an empty server and its
    /// speed.
    pub fn append_only(mut self, append_only: bool) -> Self {
        self.append_only = append_only;
        self
    }

    /// Sets the port on 127.0.0.1. Default: a free port, and another one if that port is taken
    /// before the server starts. A port set here must be free.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Sets a password for the default user. Default: none.
    ///
    /// # Panics
    ///
    /// Panics if the password has characters that need escaping in a URL or in the configuration.
    /// Only letters and digits are allowed.
    pub fn password(mut self, password: &str) -> Self {
        assert!(
            password.bytes().all(|b| b.is_ascii_alphanumeric()),
            "the password may only have letters and digits"
        );
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a line to `redis.conf`, such as `("maxmemory", "2mb")` or
    /// `("user", "app on >pw ~* +@all")`, after the builder's own lines, so that the added line
    /// takes precedence. Default: none.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        writeln!(self.lines, "{name} {value}").expect("a string takes every line");
        self
    }

    /// Sets an environment variable of the server, such as a library to preload. Default: the
    /// variables of this process.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    ///
    /// Fails with [`ServerError::Missing`] if `redis-server` is not installed, and otherwise with
    /// the reason why the server did not start and the end of its log.
    pub fn start(self) -> Result<RedisServer, ServerError> {
        let program = self.program()?;
        match self.port {
            Some(port) => RedisServer::launch(&self, &program, port),
            None => port::with_free_port(|port| RedisServer::launch(&self, &program, port)),
        }
    }

    /// Finds the program of the server.
    pub(super) fn program(&self) -> Result<PathBuf, ServerError> {
        if !self.is_valkey {
            return program::require("redis-server", INSTALL_REDIS);
        }
        let server = valkey::server();
        if !server.is_file() {
            let what = format!("the program {}", server.display());
            return Err(ServerError::Missing { what, install: INSTALL_VALKEY });
        }
        Ok(server)
    }

    /// Formats `redis.conf`.
    pub(super) fn render_config(&self, port: u16, folder: &Path, socket: &Path) -> String {
        let append_only = if self.append_only { "yes" } else { "no" };
        let password = self
            .password
            .as_ref()
            .map_or(String::new(), |password| format!("requirepass {password}"));
        format!(
            "bind 127.0.0.1\n\
             port {port}\n\
             unixsocket \"{}\"\n\
             dir \"{}\"\n\
             save \"\"\n\
             appendonly {append_only}\n\
             appendfsync everysec\n\
             {password}\n\
             {}",
            socket.display(),
            folder.display(),
            self.lines,
        )
    }
}
