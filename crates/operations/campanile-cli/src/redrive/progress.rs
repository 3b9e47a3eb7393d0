//! The progress, on standard error.

use std::convert::Infallible;
use std::future::pending;
use std::io::{self, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::sleep;

/// The time between two lines. Short enough to see that a run is alive, and long enough that an hour
/// of it does not fill a log.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// A bar on a terminal, and lines elsewhere, such as in the log of a container.
pub(super) struct Progress {
    bar: ProgressBar,
    /// Names the topic and the group, so that the group can be found.
    name: String,
}

impl Progress {
    pub(super) fn new(topic: &str, group: &str) -> Self {
        let progress = Self::with_target(topic, group, ProgressDrawTarget::stderr());
        print_line(&progress.name);
        progress
    }

    fn with_target(topic: &str, group: &str, target: ProgressDrawTarget) -> Self {
        let style =
            ProgressStyle::with_template("{bar:40} {pos}/{len} letters, {per_sec}, {eta} left");
        let bar = ProgressBar::with_draw_target(Some(0), target);
        Self {
            bar: bar.with_style(style.unwrap_or(ProgressStyle::default_bar())),
            name: format!("redrive of {topic}, consumer group {group}"),
        }
    }

    /// The bar, which draws nothing if standard error is not a terminal.
    pub(super) fn bar(&self) -> &ProgressBar {
        &self.bar
    }

    /// Prints a line now and then, unless the bar is drawn. Never completes.
    pub(super) async fn print_lines(&self) -> Infallible {
        if !self.bar.is_hidden() {
            return pending().await;
        }
        self.each_line(|line| print_line(&line)).await
    }

    async fn each_line(&self, mut print: impl FnMut(String)) -> Infallible {
        loop {
            sleep(LINE_INTERVAL).await;
            let (handled, length) = (self.bar.position(), self.bar.length().unwrap_or(0));
            print(format!("{}: {handled} of {length} letters handled", self.name));
        }
    }
}

/// Prints to standard error. Without a reader, the run continues.
fn print_line(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lines_name_the_group_and_what_is_handled() {
        let progress = Progress::with_target("dead", "g", ProgressDrawTarget::hidden());
        progress.bar().set_length(50);
        let mut lines = Vec::new();
        let print = |line| {
            lines.push(line);
            progress.bar().inc(20);
        };
        tokio::time::timeout(LINE_INTERVAL * 5 / 2, progress.each_line(print)).await.unwrap_err();
        let line =
            |handled| format!("redrive of dead, consumer group g: {handled} of 50 letters handled");
        assert_eq!(lines, [0, 20].map(line));
    }
}
