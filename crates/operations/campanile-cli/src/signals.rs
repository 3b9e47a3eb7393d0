//! Ctrl-C and SIGTERM.

use std::io::{self, Write};

use tokio::sync::oneshot;

/// Starts to receive signals. The returned future completes with the first signal. The second signal ends
/// the process at once, whatever the verb waits for. Must be called on a Tokio runtime.
pub(crate) fn stop_requested() -> impl Future<Output = ()> {
    let (stop, stopped) = oneshot::channel();
    let mut signals = Signals::receive();
    tokio::spawn(async move {
        signals.next().await;
        // Without a reader, the process stops as well.
        let _ = writeln!(io::stderr(), "stopping; press Ctrl-C again to stop at once");
        let _ = stop.send(());
        signals.next().await;
        std::process::exit(130);
    });
    async {
        let _ = stopped.await;
    }
}

/// The signals since [`receive`](Self::receive), or why they cannot be received.
#[cfg(unix)]
struct Signals(io::Result<[tokio::signal::unix::Signal; 2]>);

#[cfg(unix)]
impl Signals {
    fn receive() -> Self {
        use tokio::signal::unix::{SignalKind, signal};

        let interrupted = signal(SignalKind::interrupt());
        Self(interrupted.and_then(|it| Ok([it, signal(SignalKind::terminate())?])))
    }

    async fn next(&mut self) {
        let Ok([interrupted, terminated]) = &mut self.0 else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn receive() -> Self {
        Self
    }

    async fn next(&mut self) {
        // An error means that signals cannot be received.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
