//! What a connection had not delivered when it was given up is not delivered later.

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

use crate::support::{acquire, acquired, command, impatient, insist, key, owner, raw, redis_key};

const LONG: Duration = Duration::from_secs(60);

/// A way to a server on which requests of the first connection can be held up: they are not read, so
/// that they stay in the kernel of their sender, as when the network loses their packets.
struct Congestion {
    addr: SocketAddr,
    gate: Arc<Gate>,
    /// Receives when the first connection has ended on the server's side.
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

impl Congestion {
    fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // Connections inherit it: little more than this leaves the sender's kernel unread.
        SockRef::from(&listener).set_recv_buffer_size(2_048).unwrap();
        let (addr, gate) = (listener.local_addr().unwrap(), Arc::new(Gate::default()));
        let (tell, ended) = mpsc::channel();
        let shared = Arc::clone(&gate);
        let is_held = Arc::new(AtomicBool::new(false));
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
                // The store looks at its server over a connection that it closes again.
                let gate = Arc::clone(&shared);
                let (tell, is_held) = (tell.clone(), Arc::clone(&is_held));
                thread::spawn(move || serve(&client, &server, &gate, &is_held, &tell));
            }
        });
        Self { addr, gate, ended }
    }

    /// Holds up the connections that there are.
    fn begin(&self) {
        self.gate.set(true);
    }

    /// Delivers what has not been lost, and waits until the server has taken it.
    fn end(&self) {
        self.gate.set(false);
        self.ended.recv_timeout(LONG).expect("the connection was given up");
    }
}

fn serve(
    client: &TcpStream,
    server: &TcpStream,
    gate: &Gate,
    is_held: &AtomicBool,
    tell: &mpsc::Sender<()>,
) {
    let mut was_held = false;
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut from, mut to) = (server, client);
            let mut bytes = [0; 1_024];
            // Also when nobody reads it any more: until the server has ended.
            while let Ok(length @ 1..) = from.read(&mut bytes) {
                let _ = to.write_all(&bytes[..length]);
            }
        });
        let (mut from, mut to) = (client, server);
        let mut bytes = [0; 1_024];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            // One connection is held up, and not those that follow it.
            if *gate.is_closed.lock().unwrap()
                && (was_held || !is_held.swap(true, Ordering::SeqCst))
            {
                was_held = true;
                gate.wait();
            }
            to.write_all(&bytes[..length]).unwrap();
        }
        let _ = server.shutdown(Shutdown::Write);
    });
    let _ = client.shutdown(Shutdown::Both);
    if was_held {
        tell.send(()).unwrap();
    }
}

/// The cancel of an acquire that was not answered goes over another connection. An acquire that
/// arrives behind it would lock its key for nobody, and count an attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_held_up_in_the_kernel_never_follows_its_cancel() {
    let server = RedisServer::start().unwrap();
    let way = Congestion::before(server.addr());
    let config = impatient(server.url_through(way.addr));
    let store = RedisStore::connect(config).await.unwrap();
    // The server knows the script, or it would refuse what arrives late.
    acquired(&store, &key("before"), 1).await;

    way.begin();
    let keys: Vec<_> = (0..512).map(|n| key(n.to_string())).collect();
    let batch = keys.iter().map(|key| command(key, acquire(7))).collect();
    for answer in store.apply_batch(batch).await {
        assert_eq!(answer.unwrap_err().kind(), StoreErrorKind::Timeout);
    }
    let last = &keys[511];
    let cancel = Operation::Cancel { owner: owner(7) };
    assert_eq!(insist(&store, last, cancel).await, Reply::Released);
    tokio::task::block_in_place(|| way.end());

    let stored: Option<Vec<u8>> =
        redis::cmd("GET").arg(redis_key(last)).query(&mut raw(&server)).unwrap();
    assert_eq!(stored, None, "it was locked behind its cancel");
}
