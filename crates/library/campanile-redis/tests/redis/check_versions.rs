//! Tests with servers that cannot be started here: older versions, forks, or a wrong clock.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, SystemTime};

use campanile_redis::{ConnectError, FindingKind, RedisStore};

use crate::support::long_timeout;

/// A fake server that replies as configured.
struct FakeServer {
    address: SocketAddr,
}

impl FakeServer {
    /// Starts a server with this `INFO` reply and a clock that is ahead by this many seconds.
    fn new(info: &str, ahead: i64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let info = info.to_owned();
        thread::spawn(move || {
            for client in listener.incoming() {
                let info = info.clone();
                // Ends when the client disconnects.
                thread::spawn(move || serve(client.unwrap(), &info, ahead));
            }
        });
        Self { address }
    }

    async fn connect(&self) -> Result<RedisStore, ConnectError> {
        RedisStore::connect(long_timeout(format!("redis://{}", self.address))).await
    }
}

fn serve(client: TcpStream, info: &str, ahead: i64) -> io::Result<()> {
    let mut client = BufReader::new(client);
    loop {
        let words = read_request(&mut client)?;
        let reply = match &*words[0] {
            "INFO" => format!("${}\r\n{info}\r\n", info.len()),
            "CONFIG" => "*0\r\n".to_owned(),
            "EVAL" => ":1\r\n".to_owned(),
            "TIME" => {
                let seconds = now().checked_add_signed(ahead).unwrap().to_string();
                format!("*2\r\n${}\r\n{seconds}\r\n$1\r\n0\r\n", seconds.len())
            }
            _ => "+OK\r\n".to_owned(),
        };
        client.get_mut().write_all(reply.as_bytes())?;
    }
}

fn read_request(client: &mut impl BufRead) -> io::Result<Vec<String>> {
    let number = |prefix: char, client: &mut dyn BufRead| -> io::Result<usize> {
        let mut line = String::new();
        client.read_line(&mut line)?;
        let text = line.strip_prefix(prefix).ok_or(io::ErrorKind::UnexpectedEof)?;
        text.trim_end().parse().map_err(io::Error::other)
    };
    let count = number('*', client)?;
    let mut word = || {
        let mut bytes = vec![0; number('$', client)? + 2];
        client.read_exact(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned())
    };
    (0..count).map(|_| word()).collect()
}

#[expect(clippy::disallowed_methods, reason = "the clock of a fake server")]
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

#[tokio::test]
async fn unsupported_versions_are_refused() {
    for version in ["6.2.14", "5.0.7", "unstable"] {
        let server = FakeServer::new(&format!("# Server\r\nredis_version:{version}\r\n"), 0);
        let error = server.connect().await.unwrap_err();
        let ConnectError::Unsafe { findings, .. } = &error else { panic!("{error:?}") };
        assert_eq!(findings[0].kind(), FindingKind::Version);
        assert!(error.to_string().contains(version), "{error}");
        assert!(error.to_string().contains("7.0"), "{error}");
    }
}

#[tokio::test]
async fn waitaof_is_refused_before_its_version() {
    let server = FakeServer::new("redis_version:7.0.15\r\naof_enabled:1\r\n", 0);
    let config = long_timeout(format!("redis://{}", server.address));
    let config = config.with_wait_aof(0, Duration::from_secs(60));
    let error = RedisStore::connect(config).await.unwrap_err();
    let ConnectError::Unsafe { findings, .. } = &error else { panic!("{error:?}") };
    assert_eq!(findings[0].kind(), FindingKind::Version);
    assert!(findings[0].remedy().contains("7.2"), "{error}");
}

#[tokio::test]
async fn newer_redis_and_valkey_are_accepted() {
    let valkey = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\n";
    for info in ["redis_version:7.0.0\r\n", "redis_version:10.2.0\r\n", valkey] {
        let store = FakeServer::new(info, 0).connect().await.unwrap();
        assert!(store.findings().is_empty(), "{:?}", store.findings());
    }
}

#[tokio::test]
async fn clock_skew_is_a_finding() {
    for ahead in [-3600, 3600] {
        let server = FakeServer::new("redis_version:7.2.0\r\n", ahead);
        let store = server.connect().await.unwrap();
        let [finding] = store.findings() else { panic!("{:?}", store.findings()) };
        assert_eq!(finding.kind(), FindingKind::Clock);
        assert!(finding.remedy().contains("NTP"), "{finding}");
        let apart: f64 = finding.observed().split(' ').nth(5).unwrap().parse().unwrap();
        assert!((3500.0..3700.0).contains(&apart), "{finding}");
    }
}
