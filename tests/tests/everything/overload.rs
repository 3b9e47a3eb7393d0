//! Notices when the machine is so busy that no store could answer in time.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use campanile_test::Proxy;
use campanile_test::history::{FaultKind, HistoryRecorder};

/// The pause between two round trips.
const INTERVAL: Duration = Duration::from_millis(50);

/// How late a round trip may be. It takes less than a millisecond on an idle machine.
const MAX_DELAY: Duration = Duration::from_millis(100);

/// Sends bytes through a proxy to a thread that returns them, as a call of a store passes the network and a
/// server. Late ones are recorded as an overloaded store: whatever the consumers do, it is no fault of
/// theirs.
pub(crate) struct OverloadWatch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl OverloadWatch {
    pub(crate) fn start(recorders: Vec<HistoryRecorder>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let proxy = Proxy::to(listener.local_addr().unwrap()).unwrap();
        thread::spawn(move || echo(&listener.accept()?.0));
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let thread = thread::spawn(move || watch(&proxy, &recorders, &stopped));
        Self { stop, thread }
    }

    /// Stops watching. Returns for how long the machine was too busy.
    pub(crate) fn stop(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn watch(proxy: &Proxy, recorders: &[HistoryRecorder], stopped: &AtomicBool) -> Duration {
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut busy = Duration::ZERO;
    while !stopped.load(Ordering::Relaxed) {
        let from = recorders[0].now();
        thread::sleep(INTERVAL);
        stream.write_all(b"?").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        let until = recorders[0].now();
        let took = Duration::from_micros(until - from);
        if took > INTERVAL + MAX_DELAY {
            busy += took;
            for recorder in recorders {
                recorder.fault(from, Some(until), FaultKind::StoreUnavailable);
            }
        }
    }
    busy
}

/// Returns what it receives until the connection is closed.
fn echo(mut stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        stream.write_all(&byte)?;
    }
}
