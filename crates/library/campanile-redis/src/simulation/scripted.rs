//! Servers whose replies are determined by a test.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::ConnectionInfo;
use tokio::io::{AsyncWriteExt, BufReader, DuplexStream, split};

use super::BUFFER;
use super::resp::{Reply, read_request};
use crate::{RedisConfig, RedisStore, Safety};

/// More requests than any test sends. All connections are closed then, so that a client that never
/// gives up fails its test.
const MAX_REQUESTS: usize = 1_000;

thread_local! {
    /// The servers of the test that runs in this thread.
    static SERVERS: RefCell<Option<Arc<Inner>>> = const { RefCell::new(None) };
}

/// Servers at all addresses that this thread connects to. Dropping it ends them.
pub(crate) struct ScriptedServers(Arc<Inner>);

struct Inner {
    script: Box<Script>,
    /// The address and the command of each request.
    requests: Mutex<Vec<(String, String)>>,
    /// The time before each reply of the server at an address.
    delays: Mutex<BTreeMap<String, Duration>>,
}

/// Returns the reply of the server at an address to the words of a request; `None` for the default.
type Script = dyn Fn(&str, &[&str]) -> Option<Reply> + Send + Sync;

impl ScriptedServers {
    /// Starts the servers.
    pub(crate) fn start(
        script: impl Fn(&str, &[&str]) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let (requests, delays) = Default::default();
        let inner = Arc::new(Inner { script: Box::new(script), requests, delays });
        SERVERS.set(Some(Arc::clone(&inner)));
        Self(inner)
    }

    /// Starts the servers, and connects a store to them as to a cluster. `a:1` has all slots.
    pub(crate) async fn start_cluster(
        script: impl Fn(&str, &[&str]) -> Option<Reply> + Send + Sync + 'static,
    ) -> (Self, RedisStore) {
        let servers = Self::start(script);
        let config = RedisConfig::cluster(["redis://a:1"]).with_safety(Safety::Off);
        (servers, RedisStore::connect(config).await.expect("servers that answer"))
    }

    /// Delays each reply of the server at this address from now on.
    pub(crate) fn set_delay(&self, address: &str, delay: Duration) {
        self.0.delays().insert(address.into(), delay);
    }

    /// The address of each request with this command.
    pub(crate) fn received(&self, command: &str) -> Vec<String> {
        let requests = self.0.requests();
        let matching = requests.iter().filter(|(_, name)| name == command);
        matching.map(|(address, _)| address.clone()).collect()
    }
}

impl Drop for ScriptedServers {
    fn drop(&mut self) {
        SERVERS.take();
    }
}

/// Connects to the scripted servers of this thread, if it has any.
pub(super) fn connect(info: &ConnectionInfo) -> Option<DuplexStream> {
    let servers = SERVERS.with_borrow(Clone::clone)?;
    let (client, server) = tokio::io::duplex(BUFFER);
    tokio::spawn(servers.serve(info.addr().to_string(), server));
    Some(client)
}

impl Inner {
    async fn serve(self: Arc<Self>, address: String, stream: DuplexStream) -> io::Result<()> {
        let (reader, mut writer) = split(stream);
        let mut reader = BufReader::new(reader);
        while let Some(request) = read_request(&mut reader).await? {
            let words: Vec<_> = request.iter().map(|word| String::from_utf8_lossy(word)).collect();
            let words: Vec<_> = words.iter().map(|word| &**word).collect();
            self.requests().push((address.clone(), words[0].into()));
            if self.requests().len() > MAX_REQUESTS {
                break;
            }
            let delay = self.delays().get(&address).copied();
            if let Some(delay) = delay {
                tokio::time::sleep(delay).await;
            }
            let reply = (self.script)(&address, &words).unwrap_or_else(|| default_reply(&words));
            let mut encoded = Vec::new();
            reply.write(&mut encoded);
            writer.write_all(&encoded).await?;
        }
        Ok(())
    }

    fn requests(&self) -> MutexGuard<'_, Vec<(String, String)>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn delays(&self) -> MutexGuard<'_, BTreeMap<String, Duration>> {
        self.delays.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reply of a server with the default bucket count, and of a cluster's only master.
fn default_reply(words: &[&str]) -> Reply {
    match words {
        ["ASKING" | "CLIENT", ..] => Reply::Ok,
        ["CLUSTER", "SLOTS"] => {
            let master = Reply::Array(vec![Reply::text("a"), Reply::Int(1)]);
            Reply::Array(vec![Reply::Array(vec![Reply::Int(0), Reply::Int(16_383), master])])
        }
        ["GET", ..] => Reply::text("16"),
        ["INFO", ..] => Reply::text(""),
        _ => Reply::Error("ERR the script has no reply"),
    }
}
