//! Ctrl-C and SIGTERM.

/// Waits for a signal to stop. A second signal ends the process at once.
pub(crate) async fn stop_requested() {
    next_signal().await;
    eprintln!("stopping; press Ctrl-C again to stop at once");
    tokio::spawn(async {
        next_signal().await;
        std::process::exit(130);
    });
}

#[cfg(unix)]
async fn next_signal() {
    use tokio::signal::unix::{SignalKind, signal};

    let Ok(mut terminated) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
    }
}

#[cfg(not(unix))]
async fn next_signal() {
    // An error means that signals cannot be received.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
