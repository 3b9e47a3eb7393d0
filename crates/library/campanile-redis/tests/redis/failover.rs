//! A server that becomes a replica while clients are connected.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use campanile_core::Reply;
use campanile_idempotency::StoreErrorKind;
use campanile_redis::RedisStore;
use campanile_test::{RedisServer, eventually};

use crate::support::{
    acquire, acquire_lock, apply, chain, complete, key, long_timeout, server_and_store,
};

#[tokio::test]
async fn read_only_server_fails_until_writable_again() {
    let (server, store) = server_and_store().await;
    let key = key("key");
    let grant = acquire_lock(&store, &key, 1).await;

    server.cli(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    for operation in [acquire(2), complete(grant, "done")] {
        let error = apply(&store, &key, operation).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(chain(&error).contains("read only replica"), "{}", chain(&error));
    }
    server.cli(&["REPLICAOF", "NO", "ONE"]).unwrap();
    assert_eq!(apply(&store, &key, complete(grant, "done")).await.unwrap(), Reply::Completed);
}

#[tokio::test]
async fn first_command_after_failover_reaches_new_primary() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let name = MovingName::of(&old);
    let store =
        RedisStore::connect(long_timeout(format!("redis://{}", name.address))).await.unwrap();
    let key = key("key");
    let grant = acquire_lock(&store, &key, 1).await;

    replicate_from(&new, &old);
    let has_all = || (new.cli(&["DBSIZE"]).unwrap() == old.cli(&["DBSIZE"]).unwrap()).then_some(());
    eventually(Duration::from_secs(20), has_all).expect("the replica should catch up");
    new.cli(&["REPLICAOF", "NO", "ONE"]).unwrap();
    replicate_from(&old, &new);
    // The store's connection to the old primary stays open.
    name.point_to(&new);

    assert_eq!(apply(&store, &key, complete(grant, "done")).await.unwrap(), Reply::Completed);
}

fn replicate_from(replica: &RedisServer, primary: &RedisServer) {
    replica.cli(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]).unwrap();
}

/// An address that leads to one server and later to another, like a DNS name. Existing connections
/// are not affected.
struct MovingName {
    address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
}

impl MovingName {
    fn of(server: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let target = Arc::new(Mutex::new(server.addr()));
        let current = Arc::clone(&target);
        thread::spawn(move || {
            for client in listener.incoming() {
                let server = TcpStream::connect(*current.lock().unwrap()).unwrap();
                forward(client.unwrap(), server);
            }
        });
        Self { address, target }
    }

    fn point_to(&self, server: &RedisServer) {
        *self.target.lock().unwrap() = server.addr();
    }
}

fn forward(client: TcpStream, server: TcpStream) {
    for (mut from, mut to) in
        [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
    {
        thread::spawn(move || {
            // However the copy ends, the other side must see the end of the stream.
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}
