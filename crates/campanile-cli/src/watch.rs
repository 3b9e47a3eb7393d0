//! The verb `watch`.

use std::time::Duration;

use campanile_admin::AdminError;
use campanile_admin::watch::{EntriesView, Snapshot, Watch};
use campanile_core::{ConfigError, Namespace, error};
use clap::Args;
use console::Term;
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};

use crate::exit::Exit;
use crate::options::{KafkaOptions, StoreOptions, parse_namespace};
use crate::print::{print_json_while_read, print_while_read};

/// Watch a consumer group: members, partitions, lag, and records per second
///
/// On a terminal, the view is repainted in place until Ctrl-C. Otherwise, each interval is a line. The
/// group, its offsets and the ends of its partitions are read from Kafka. Outcomes per second, what is
/// in flight, the oldest record and whether the consumer is paused are known only to the processes of
/// the application: --metrics reads them there. Joins no group, commits nothing and writes nothing.
///
/// The exit code of --once is 0 if the group has partitions, and 1 if not or if the entries could not be
/// counted.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The consumer group
    #[arg(long)]
    group: String,
    /// Only this topic. May be repeated. By default, all topics with a committed offset of the group
    #[arg(long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,
    /// The endpoint for Prometheus of a process of the application, such as
    /// http://10.0.0.7:9000/metrics. May be repeated
    #[arg(long, value_name = "URL")]
    metrics: Vec<String>,
    /// Also count the entries of the namespace in the store by state. Each count reads all of them,
    /// and takes at most 5 % of the store's time
    #[arg(long, requires = "namespace")]
    entries: bool,
    /// The namespace of the entries
    #[arg(long, env = "CAMPANILE_NAMESPACE", value_parser = parse_namespace)]
    namespace: Option<Namespace>,
    /// The time between two looks
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_interval)]
    interval: Duration,
    /// Look once, which shows no rates, and end
    #[arg(long)]
    once: bool,
    /// Print a line of JSON for each look
    #[arg(long)]
    json: bool,
    /// How long to wait for an answer of the brokers or of a process
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    kafka: KafkaOptions,
    #[command(flatten)]
    store: StoreOptions,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let is_valid = interval >= Duration::from_millis(100);
    is_valid.then_some(interval).ok_or_else(|| "must be at least 100ms".to_owned())
}

impl Arguments {
    pub(crate) fn watch(&self) -> Result<Watch, ConfigError> {
        let watch = Watch::new(&*self.group).with_timeout(self.timeout);
        let watch = self.topics.iter().fold(watch, Watch::with_topic);
        self.metrics.iter().try_fold(watch, |watch, url| watch.with_metrics(url))
    }
}

pub(crate) async fn run(arguments: Arguments) -> Result<Exit, AdminError> {
    let kafka = arguments.kafka.config()?;
    let mut watcher = arguments.watch()?.start(&kafka)?;
    if let (true, Some(namespace)) = (arguments.entries, &arguments.namespace) {
        watcher.count_entries(arguments.store.connect().await?, namespace.clone());
    }
    if arguments.once {
        watcher.entries_counted().await;
    }
    let mut output = Output::new(&arguments);
    let mut ticks = interval(arguments.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_first = true;
    loop {
        ticks.tick().await;
        match watcher.snapshot().await {
            Ok(snapshot) => {
                output.show(&snapshot)?;
                if arguments.once {
                    let is_counted = !matches!(snapshot.entries, Some(EntriesView::Failed { .. }));
                    let is_whole = is_counted && !snapshot.partitions.is_empty();
                    return Ok(if is_whole { Exit::Done } else { Exit::Attention });
                }
            }
            Err(error) if is_first => return Err(error),
            // Brokers may be away for a while.
            Err(error) => output.show_error(&error)?,
        }
        is_first = false;
    }
}

/// Where the snapshots are printed.
enum Output {
    Json,
    Lines,
    Screen {
        term: Term,
        /// The number of lines that are on the screen.
        painted: usize,
        is_once: bool,
    },
}

impl Output {
    fn new(arguments: &Arguments) -> Self {
        let term = Term::stdout();
        match (arguments.json, term.is_term()) {
            (true, _) => Self::Json,
            (false, true) => Self::Screen { term, painted: 0, is_once: arguments.once },
            (false, false) => Self::Lines,
        }
    }

    fn show(&mut self, snapshot: &Snapshot) -> Result<(), AdminError> {
        match self {
            Self::Json => print_json_while_read(snapshot),
            Self::Lines => print_while_read(&snapshot.to_line()),
            Self::Screen { is_once: true, .. } => {
                print_while_read(&snapshot.to_lines(usize::MAX).join("\n"))
            }
            Self::Screen { term, painted, .. } => {
                let (height, _) = term.size();
                // All lines that are not partitions.
                let others = snapshot.to_lines(0).len() + 2;
                let partitions = usize::from(height).saturating_sub(others).max(1);
                paint(term, painted, &snapshot.to_lines(partitions))
            }
        }
    }

    fn show_error(&mut self, failed: &AdminError) -> Result<(), AdminError> {
        #[derive(Serialize)]
        struct Line {
            error: String,
        }
        let texts: Vec<_> = error::sources(failed).map(ToString::to_string).collect();
        let error = texts.join(": ");
        match self {
            Self::Json => print_json_while_read(&Line { error }),
            Self::Lines => print_while_read(&format!("error: {error}")),
            Self::Screen { term, painted, .. } => {
                paint(term, painted, &[format!("error: {error}")])
            }
        }
    }
}

/// Replaces the lines on the screen.
fn paint(term: &Term, painted: &mut usize, lines: &[String]) -> Result<(), AdminError> {
    let (height, width) = term.size();
    // A line that wraps, or one below the screen, could not be replaced.
    let lines = lines.iter().take(usize::from(height).saturating_sub(1));
    let lines: Vec<String> =
        lines.map(|line| line.chars().take(usize::from(width)).collect()).collect();
    let cleared = term.clear_last_lines(*painted);
    *painted = lines.len();
    cleared.map_err(|error| AdminError::Unavailable {
        action: "cannot write to the terminal".into(),
        source: error.into(),
    })?;
    print_while_read(&lines.join("\n"))
}
