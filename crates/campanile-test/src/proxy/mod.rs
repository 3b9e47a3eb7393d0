//! A TCP proxy with faults.

mod acceptor;
mod connection;
mod faults;

use acceptor::Acceptor;
use faults::{Faults, Mode};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A TCP proxy in front of a server, whose faults a test switches while it runs.
///
/// It has threads of its own, so that it works under a runtime whose time is paused. Delay and
/// swallowing replace each other. TCP never goes on after a gap: a connection that has lost bytes is
/// closed when its fault ends. Memory is bounded, because a side that does not read holds up the
/// other.
///
/// A client that is told other addresses by the server, as Kafka's and a Redis cluster's are, goes
/// past the proxy, unless the server is given the proxy's address to tell.
///
/// ```no_run
/// use campanile_test::{Proxy, RedisServer};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = RedisServer::start()?;
/// let proxy = Proxy::to(redis.addr())?;
/// let url = redis.url_through(proxy.addr()); // for the client under test
///
/// proxy.swallow_replies(); // commands are executed, and nobody hears of it
/// proxy.heal()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    faults: Arc<Faults>,
    /// `None` while connections are refused.
    acceptor: Mutex<Option<Acceptor>>,
}

impl Proxy {
    /// A proxy on a free port of 127.0.0.1, without faults. The server need not run yet; while it
    /// does not, a connection is accepted and closed at once.
    ///
    /// # Errors
    ///
    /// When `server` is no address, or no port can be had.
    pub fn to(server: impl ToSocketAddrs) -> io::Result<Self> {
        let server = server.to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let faults = Arc::new(Faults::new(server));
        let acceptor = Acceptor::on_free_port(&faults)?;
        Ok(Self { addr: acceptor.addr(), faults, acceptor: Mutex::new(Some(acceptor)) })
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Holds back what passes, in both directions, by at least this long each: an answer takes twice
    /// as long. What follows closely on something held back waits behind it.
    pub fn delay(&self, delay: Duration) {
        self.faults.set(Mode::Delay(delay));
    }

    /// Requests reach the server; its replies vanish, those under way included.
    pub fn swallow_replies(&self) {
        self.faults.set(Mode::SwallowReplies);
    }

    /// Requests vanish; the connection stays open.
    pub fn swallow_requests(&self) {
        self.faults.set(Mode::SwallowRequests);
    }

    /// The bytes swallowed so far, by which a test knows that its request or its reply is lost.
    pub fn swallowed(&self) -> u64 {
        self.faults.swallowed()
    }

    /// Closes every connection and refuses new ones, until [`heal`](Self::heal).
    pub fn cut(&self) {
        if let Some(acceptor) = self.acceptor().take() {
            acceptor.stop();
        }
    }

    /// Ends every fault. Connections that have lost bytes are closed, the others go on.
    ///
    /// # Errors
    ///
    /// When, after a [`cut`](Self::cut), somebody else has taken the port.
    pub fn heal(&self) -> io::Result<()> {
        self.faults.set(Mode::Forward);
        let mut acceptor = self.acceptor();
        if acceptor.is_none() {
            *acceptor = Some(Acceptor::on(self.addr, &self.faults)?);
        }
        Ok(())
    }

    fn acceptor(&self) -> MutexGuard<'_, Option<Acceptor>> {
        self.acceptor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
    }
}
