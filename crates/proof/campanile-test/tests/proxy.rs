//! The proxy's faults, in front of a server that echoes each line.

#![expect(clippy::unwrap_used, reason = "test helpers")]

use campanile_test::{Proxy, eventually, free_port};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(10);

/// A server that counts the lines it receives. Its threads exit with their connections.
struct Echo {
    addr: SocketAddr,
    lines: Arc<AtomicUsize>,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let lines = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&lines);
        thread::spawn(move || {
            for connection in listener.incoming() {
                let counter = Arc::clone(&counter);
                thread::spawn(move || echo(connection.unwrap(), &counter));
            }
        });
        Self { addr, lines }
    }

    fn lines(&self) -> usize {
        self.lines.load(Ordering::SeqCst)
    }
}

fn echo(connection: TcpStream, counter: &AtomicUsize) {
    let mut writer = connection.try_clone().unwrap();
    // The loop ends when the client disconnects, in whatever way.
    for line in BufReader::new(connection).lines().map_while(Result::ok) {
        counter.fetch_add(1, Ordering::SeqCst);
        if writeln!(writer, "{line}").is_err() {
            return;
        }
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(proxy.addr()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&mut self, line: &str) {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn request(&mut self, line: &str) -> String {
        self.send(line);
        let mut answer = String::new();
        self.0.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    /// Checks whether the other side has closed the connection without sending data first.
    fn is_closed(&mut self) -> bool {
        match self.0.read(&mut [0]) {
            Ok(length) => length == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the tests measure delays")]
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

#[test]
fn proxy_without_faults_forwards_everything() {
    let proxy = Proxy::to(Echo::start().addr).unwrap();
    let mut clients: Vec<_> = (0..4).map(|_| Client::connect(&proxy)).collect();
    for client in &mut clients {
        assert_eq!(client.request("ding"), "ding");
    }
    let long = "dong".repeat(100_000);
    assert_eq!(clients[0].request(&long), long);
    assert_eq!(proxy.swallowed(), 0);
}

#[test]
fn delay_applies_to_both_directions_until_heal() {
    let proxy = Proxy::to(Echo::start().addr).unwrap();
    let mut client = Client::connect(&proxy);
    proxy.delay(Duration::from_millis(60));
    let (answer, time) = timed(|| client.request("ding"));
    assert_eq!(answer, "ding");
    assert!(time >= Duration::from_millis(120), "{time:?}");

    proxy.delay(Duration::from_secs(3600));
    client.send("dong");
    proxy.heal().unwrap();
    let mut answer = String::new();
    client.0.read_line(&mut answer).unwrap();
    assert_eq!(answer, "dong\n");
}

#[test]
fn swallowed_replies_have_reached_the_server() {
    let echo = Echo::start();
    let proxy = Proxy::to(echo.addr).unwrap();
    let mut client = Client::connect(&proxy);
    assert_eq!(client.request("ding"), "ding");
    proxy.swallow_replies();
    client.send("dong");
    eventually(TIMEOUT, || (proxy.swallowed() == 5).then_some(())).expect("the reply is lost");
    assert_eq!(echo.lines(), 2);
    client.0.get_ref().set_nonblocking(true).unwrap();
    let nothing = client.0.read(&mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
}

#[test]
fn swallowed_requests_do_not_reach_the_server() {
    let echo = Echo::start();
    let proxy = Proxy::to(echo.addr).unwrap();
    let mut client = Client::connect(&proxy);
    assert_eq!(client.request("ding"), "ding");
    proxy.swallow_requests();
    client.send("dong");
    eventually(TIMEOUT, || (proxy.swallowed() == 5).then_some(())).expect("the request is lost");
    assert_eq!(echo.lines(), 1);
}

#[test]
fn heal_closes_only_connections_with_a_gap() {
    let proxy = Proxy::to(Echo::start().addr).unwrap();
    let mut whole = Client::connect(&proxy);
    let mut broken = Client::connect(&proxy);
    assert_eq!(whole.request("ding"), "ding");
    proxy.swallow_replies();
    broken.send("dong");
    eventually(TIMEOUT, || (proxy.swallowed() > 0).then_some(())).expect("the reply is lost");
    proxy.heal().unwrap();
    assert!(broken.is_closed());
    assert_eq!(whole.request("ding"), "ding");
    assert_eq!(Client::connect(&proxy).request("dong"), "dong");
}

#[test]
fn forgotten_connections_stay_open_and_new_ones_work() {
    let echo = Echo::start();
    let proxy = Proxy::to(echo.addr).unwrap();
    let mut forgotten = Client::connect(&proxy);
    assert_eq!(forgotten.request("ding"), "ding");
    proxy.forget_connections();
    forgotten.send("dong");
    eventually(TIMEOUT, || (proxy.swallowed() == 5).then_some(())).expect("the request is lost");
    assert_eq!(Client::connect(&proxy).request("dong"), "dong");
    assert_eq!(echo.lines(), 2);
    forgotten.0.get_ref().set_nonblocking(true).unwrap();
    let nothing = forgotten.0.read(&mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    forgotten.0.get_ref().set_nonblocking(false).unwrap();
    proxy.heal().unwrap();
    assert!(forgotten.is_closed());
}

#[test]
fn cut_closes_and_refuses_connections_until_heal() {
    let proxy = Proxy::to(Echo::start().addr).unwrap();
    let mut client = Client::connect(&proxy);
    assert_eq!(client.request("ding"), "ding");
    for _ in 0..20 {
        proxy.cut();
        assert!(client.is_closed());
        let refused = TcpStream::connect(proxy.addr()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        proxy.cut();
        proxy.heal().unwrap();
        client = Client::connect(&proxy);
        assert_eq!(client.request("dong"), "dong");
    }
}

#[test]
fn cut_closes_delayed_connection() {
    let proxy = Proxy::to(Echo::start().addr).unwrap();
    let mut client = Client::connect(&proxy);
    assert_eq!(client.request("ding"), "ding");
    proxy.delay(Duration::from_secs(3600));
    client.send("dong");
    proxy.cut();
    assert!(client.is_closed());
}

#[test]
fn connection_closes_while_server_is_not_started() {
    let port = free_port().unwrap();
    let proxy = Proxy::to((Ipv4Addr::LOCALHOST, port)).unwrap();
    assert!(Client::connect(&proxy).is_closed());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    let server = thread::spawn(move || {
        let (connection, _) = listener.accept().unwrap();
        echo(connection, &AtomicUsize::new(0));
    });
    assert_eq!(Client::connect(&proxy).request("ding"), "ding");
    server.join().unwrap();
}

#[test]
fn unread_data_applies_backpressure() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = Proxy::to(listener.local_addr().unwrap()).unwrap();
    let client = TcpStream::connect(proxy.addr()).unwrap();
    let (_deaf, _) = listener.accept().unwrap();
    client.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let chunk = vec![0; 1 << 20];
    // Far more than the kernel's buffers hold.
    let sent = (0..1000).take_while(|_| (&client).write_all(&chunk).is_ok()).count();
    assert!(sent < 1000, "the proxy accepted {sent} MiB");
}

#[test]
fn dropped_proxy_closes_everything() {
    let proxy = Proxy::to(Echo::start().addr).unwrap();
    let mut client = Client::connect(&proxy);
    assert_eq!(client.request("ding"), "ding");
    let addr = proxy.addr();
    drop(proxy);
    assert!(client.is_closed());
    TcpStream::connect(addr).expect_err("the port is closed");
}
