//! Requests that a discarded connection has not delivered yet are never delivered.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use campanile_core::{Operation, Reply};
use campanile_idempotency::{Store, StoreErrorKind};
use campanile_redis::RedisStore;
use campanile_test::RedisServer;
use redis::io::tcp::socket2::SockRef;

use crate::support::{
    acquire, acquire_lock, apply_with_retry, command, key, owner, raw_connection, redis_key,
    short_timeout,
};

const LONG: Duration = Duration::from_secs(60);

/// A proxy that can stall the requests of one connection. It stops reading them, so that they stay
/// in the kernel of the client, as when the network loses packets.
struct StallingProxy {
    addr: SocketAddr,
    gate: Arc<Gate>,
    /// Receives a message when the stalled connection has ended on the server's side.
    ended: mpsc::Receiver<()>,
}

#[derive(Default)]
struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn set(&self, is_closed: bool) {
        *self.is_closed.lock().unwrap() = is_closed;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let is_closed = self.is_closed.lock().unwrap();
        drop(self.opened.wait_while(is_closed, |is_closed| *is_closed).unwrap());
    }
}

impl StallingProxy {
    fn new(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // Inherited by the connections. The small buffer keeps most of the requests in the client's
        // kernel.
        SockRef::from(&listener).set_recv_buffer_size(2_048).unwrap();
        let (addr, gate) = (listener.local_addr().unwrap(), Arc::new(Gate::default()));
        let (ended_sender, ended) = mpsc::channel();
        let shared = Arc::clone(&gate);
        let has_stalled = Arc::new(AtomicBool::new(false));
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
                // The store checks its server over a separate connection, which it closes again.
                let gate = Arc::clone(&shared);
                let (ended_sender, has_stalled) = (ended_sender.clone(), Arc::clone(&has_stalled));
                thread::spawn(move || serve(&client, &server, &gate, &has_stalled, &ended_sender));
            }
        });
        Self { addr, gate, ended }
    }

    /// Stalls the existing connections.
    fn stall(&self) {
        self.gate.set(true);
    }

    /// Delivers what has not been dropped, and waits until the server has processed it.
    fn resume(&self) {
        self.gate.set(false);
        self.ended.recv_timeout(LONG).expect("the connection should have been discarded");
    }
}

fn serve(
    client: &TcpStream,
    server: &TcpStream,
    gate: &Gate,
    has_stalled: &AtomicBool,
    ended_sender: &mpsc::Sender<()>,
) {
    let mut is_stalled = false;
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut from, mut to) = (server, client);
            let mut bytes = [0; 1_024];
            // Reads until the server has ended, even if the client no longer does.
            while let Ok(length @ 1..) = from.read(&mut bytes) {
                let _ = to.write_all(&bytes[..length]);
            }
        });
        let (mut from, mut to) = (client, server);
        let mut bytes = [0; 1_024];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            // Only one connection is stalled, and none of those that follow it.
            if *gate.is_closed.lock().unwrap()
                && (is_stalled || !has_stalled.swap(true, Ordering::SeqCst))
            {
                is_stalled = true;
                gate.wait();
            }
            to.write_all(&bytes[..length]).unwrap();
        }
        let _ = server.shutdown(Shutdown::Write);
    });
    let _ = client.shutdown(Shutdown::Both);
    if is_stalled {
        ended_sender.send(()).unwrap();
    }
}

/// The cancel of an unanswered acquire is sent over another connection. An acquire that arrived
/// after its cancel would lock the key without an owner, and count an attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_acquire_never_arrives_after_its_cancel() {
    let server = RedisServer::start().unwrap();
    let proxy = StallingProxy::new(server.addr());
    let config = short_timeout(server.url_through(proxy.addr));
    let store = RedisStore::connect(config).await.unwrap();
    // Caches the script on the server, which would otherwise refuse a late `EVALSHA`.
    acquire_lock(&store, &key("before"), 1).await;

    proxy.stall();
    let keys: Vec<_> = (0..512).map(|n| key(n.to_string())).collect();
    let batch = keys.iter().map(|key| command(key, acquire(7))).collect();
    for answer in store.apply_batch(batch).await {
        assert_eq!(answer.unwrap_err().kind(), StoreErrorKind::Timeout);
    }
    let last = &keys[511];
    let cancel = Operation::Cancel { owner: owner(7) };
    assert_eq!(apply_with_retry(&store, last, cancel).await, Reply::Released);
    tokio::task::block_in_place(|| proxy.resume());

    let stored: Option<Vec<u8>> =
        redis::cmd("GET").arg(redis_key(last)).query(&mut raw_connection(&server)).unwrap();
    assert_eq!(stored, None, "the key was locked after its cancel");
}
