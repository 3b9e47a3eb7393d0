use super::server::RedisServer;
use crate::{ServerError, port, program};
use std::fmt::Write as _;
use std::path::Path;

pub(super) const INSTALL: &str = "install it with `apt-get install redis-server`, or `cargo xtask install` \
    in Campanile's checkout";

/// How a [`RedisServer`] is started; made by [`RedisServer::builder`].
#[derive(Clone, Debug, Default)]
pub struct RedisServerBuilder {
    pub(super) port: Option<u16>,
    pub(super) password: Option<String>,
    append_only: bool,
    lines: String,
}

impl RedisServerBuilder {
    /// Whether writes are kept in an append-only file, synced each second, so that
    /// [`RedisServer::restart`] finds them again. Default: no, because most tests want an empty
    /// server and its speed.
    pub fn append_only(mut self, append_only: bool) -> Self {
        self.append_only = append_only;
        self
    }

    /// The port on 127.0.0.1. Default: a free one, and another one if it is taken in between; a
    /// port of your own that is taken is an error.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// A password for the default user. Default: none.
    ///
    /// # Panics
    ///
    /// When it has characters that a URL or a line of the configuration would have to escape:
    /// letters and digits are enough here.
    pub fn password(mut self, password: &str) -> Self {
        assert!(
            password.bytes().all(|b| b.is_ascii_alphanumeric()),
            "a test's password has letters and digits only"
        );
        self.password = Some(password.to_owned());
        self
    }

    /// One line of `redis.conf`, such as `("maxmemory", "2mb")` or `("user", "app on >pw ~* +@all")`,
    /// after the lines of this builder, so that it wins. Default: none.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        writeln!(self.lines, "{name} {value}").expect("a string takes every line");
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    ///
    /// [`ServerError::Missing`] when there is no `redis-server`, else what kept it from starting,
    /// with the end of its log.
    pub fn start(self) -> Result<RedisServer, ServerError> {
        let program = program::require("redis-server", INSTALL)?;
        match self.port {
            Some(port) => RedisServer::launch(&self, &program, port),
            None => port::with_free_port(|port| RedisServer::launch(&self, &program, port)),
        }
    }

    /// The text of `redis.conf`.
    pub(super) fn text(&self, port: u16, folder: &Path, socket: &Path) -> String {
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
