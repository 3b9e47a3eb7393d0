//! Captures everything that the process logs.

use std::fmt::Debug;
use std::io;
use std::sync::{Arc, Mutex};

/// Everything that was logged, or formatted for a user.
#[derive(Clone, Default)]
pub(crate) struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl CapturedLog {
    /// Captures the logs of this workspace's crates. Whether other crates log depends on features
    /// that any package of the workspace may enable.
    pub(crate) fn listen(&self) {
        let log = self.clone();
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_env_filter("campanile=trace")
            .with_writer(move || log.clone())
            .init();
    }

    pub(crate) fn show(&self, what: &(impl Debug + ?Sized)) {
        let text = format!("{what:?} {what:#?}\n");
        self.0.lock().unwrap().extend_from_slice(text.as_bytes());
    }

    pub(crate) fn error(&self, error: &(dyn std::error::Error + 'static)) {
        self.show(error);
        let mut error = Some(error);
        while let Some(shown) = error {
            self.show(&shown.to_string());
            error = shown.source();
        }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
