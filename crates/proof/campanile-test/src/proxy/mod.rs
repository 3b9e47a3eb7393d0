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

/// A TCP proxy in front of a server, with faults that a test switches at run time.
///
/// The proxy has its own threads, so that it works under a runtime with paused time. Delays and
/// swallowing replace each other. A TCP stream cannot continue after a gap, so a connection that
/// has lost bytes is closed when its fault ends. Memory use is bounded, because a side that does
/// not read slows down the other side.
///
/// A server that announces other addresses to its clients, as Kafka and a Redis cluster do, makes
/// the clients bypass the proxy, unless the server is configured to announce the proxy's address.
///
/// ```no_run
/// use campanile_test::{Proxy, RedisServer};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = RedisServer::start()?;
/// let proxy = Proxy::to(redis.addr())?;
/// let url = redis.url_through(proxy.addr()); // for the client under test
///
/// proxy.swallow_replies(); // commands are executed, but their replies are lost
/// proxy.heal()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the proxy stops when this is dropped"]
pub struct Proxy {
    addr: SocketAddr,
    faults: Arc<Faults>,
    /// `None` while connections are refused.
    acceptor: Mutex<Option<Acceptor>>,
}

impl Proxy {
    /// Starts a proxy on a free port of 127.0.0.1, without faults. The server need not run yet.
    /// While it does not run, connections are accepted and closed at once.
    ///
    /// # Errors
    ///
    /// Fails if `server` is not an address or no port is free.
    pub fn to(server: impl ToSocketAddrs) -> io::Result<Self> {
        let server = server.to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let faults = Arc::new(Faults::new(server));
        let acceptor = Acceptor::bind_free_port(&faults)?;
        Ok(Self { addr: acceptor.addr(), faults, acceptor: Mutex::new(Some(acceptor)) })
    }

    /// The address for clients to connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Delays all traffic by at least this long in each direction, so that an answer takes twice as
    /// long. Data that closely follows delayed data waits behind it.
    pub fn delay(&self, delay: Duration) {
        self.faults.set_mode(Mode::Delay(delay));
    }

    /// Forwards requests to the server and discards its replies, including those in transit.
    pub fn swallow_replies(&self) {
        self.faults.set_mode(Mode::SwallowReplies);
    }

    /// Discards requests and keeps the connection open.
    pub fn swallow_requests(&self) {
        self.faults.set_mode(Mode::SwallowRequests);
    }

    /// Discards all that is sent on the connections that exist, in both directions, and keeps them open, as
    /// a load balancer or a NAT forgets idle connections. New connections are forwarded. A client that
    /// waits for an answer learns nothing until [`heal`](Self::heal) closes those that have lost bytes.
    pub fn forget_connections(&self) {
        self.faults.forget_all();
    }

    /// The number of bytes swallowed so far, from which a test knows that its request or its reply
    /// is lost.
    pub fn swallowed(&self) -> u64 {
        self.faults.swallowed()
    }

    /// Closes every connection and refuses new ones until [`heal`](Self::heal) is called.
    pub fn cut(&self) {
        if let Some(acceptor) = self.acceptor().take() {
            acceptor.stop();
        }
    }

    /// Ends every fault. Connections that have lost bytes are closed; the others continue.
    ///
    /// # Errors
    ///
    /// Fails if, after a [`cut`](Self::cut), another process has taken the port.
    pub fn heal(&self) -> io::Result<()> {
        self.faults.set_mode(Mode::Forward);
        let mut acceptor = self.acceptor();
        if acceptor.is_none() {
            *acceptor = Some(Acceptor::bind(self.addr, &self.faults)?);
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
