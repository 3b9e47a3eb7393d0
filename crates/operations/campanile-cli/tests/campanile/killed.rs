//! A redrive that is killed and run again, with a consumer of the records.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{BoxError, DecodeLayer, Record, Request, key};
use campanile_idempotency::IdempotencyLayer;
use campanile_kafka::{Consumer, Handle};
use campanile_test::{Message, Process};
use tokio::time::Instant;
use tower::{ServiceBuilder, service_fn};

use crate::redrive;
use crate::support::{KAFKA, NAMESPACE, Scene};

/// The numbers of letters and kills; `cargo xtask soak` sets larger ones.
const LETTERS: (&str, usize) = ("CAMPANILE_REDRIVE_LETTERS", 400);
const KILLS: (&str, usize) = ("CAMPANILE_REDRIVE_KILLS", 2);

/// The time limit of each step.
const TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// What is expected of a letter, by the first part of its key.
const FAILED: &str = "failed";
const COMPLETED: &str = "completed";
const TRUNCATED: &str = "truncated";

fn length((variable, default): (&str, usize)) -> usize {
    std::env::var(variable).map_or(default, |value| value.parse().unwrap())
}

async fn letter(scene: &Scene, number: usize) -> Message {
    match number % 10 {
        0..=6 => {
            let key = format!("{FAILED}-{number}");
            scene.letter(&key, scene.fail(&key).await)
        }
        7 | 8 => {
            let key = format!("{COMPLETED}-{number}");
            let token = scene.fail(&key).await;
            scene.complete_later(&key, token).await;
            scene.letter(&key, token)
        }
        _ => {
            let key = format!("{TRUNCATED}-{number}");
            let letter = scene.letter(&key, scene.fail(&key).await);
            letter.header("campanile-truncated-payload-bytes", "9000000")
        }
    }
}

/// The number of runs of each key's handler.
type Runs = Arc<Mutex<BTreeMap<String, usize>>>;

/// Consumes the original topic.
fn consume(scene: &Scene, runs: &Runs) -> (Handle, tokio::task::JoinHandle<()>) {
    let runs = runs.clone();
    let decode =
        |record: &Record| String::from_utf8(record.payload().cloned().unwrap_or_default().to_vec());
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::with(decode))
        .layer(
            IdempotencyLayer::new(
                scene.store.clone(),
                NAMESPACE,
                key::body(|id: &String| id.clone()),
            )
            .unwrap(),
        )
        .service(service_fn(move |request: Request<String>| {
            *runs.lock().unwrap().entry(request.body().clone()).or_default() += 1;
            std::future::ready(Ok::<_, BoxError>(()))
        }));
    let serve = Consumer::new(KAFKA.consumer_config(&scene.topic))
        .unwrap()
        .subscribe([scene.topic.as_str()])
        .serve(service);
    let handle = serve.handle();
    let serving = tokio::spawn(async move {
        serve.await.unwrap();
    });
    (handle, serving)
}

/// Waits for a condition. Returns whether it was met in time.
async fn is_met(mut condition: impl FnMut() -> bool) -> bool {
    let poll = async {
        while !condition() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(TIMEOUT, poll).await.is_ok()
}

async fn until(what: &str, condition: impl FnMut() -> bool) {
    assert!(is_met(condition).await, "timed out waiting until {what}");
}

fn audit_lines(path: &Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |audit| audit.lines().count())
}

fn audit_len(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |file| file.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_redrive_loses_no_letter_and_repeats_no_event() {
    let (letters, kills) = (length(LETTERS), length(KILLS));
    let scene = Scene::new("killed", 3).await;
    let mut messages = Vec::with_capacity(letters);
    for number in 0..letters {
        messages.push(letter(&scene, number).await);
    }
    KAFKA.producer().produce_all(messages).unwrap();
    let runs = Runs::default();
    let (handle, serving) = consume(&scene, &runs);

    let folder = tempfile::tempdir().unwrap();
    let (audit, log) = (folder.path().join("audit"), folder.path().join("log"));
    let arguments = ["--audit", audit.to_str().unwrap()];
    // Slow enough that each process that is killed leaves letters to the next.
    let rate = (3 * letters / (kills + 1)).max(10).to_string();
    let seed = fastrand::get_seed();
    println!("seed {seed}");
    for kill in 0..kills {
        let mut command = redrive(&scene, &arguments);
        command.args(["--rate", &rate]);
        let mut process = Process::spawn(&command, &log).unwrap();
        // Anywhere in the first rounds, or before them.
        let before = audit_len(&audit);
        let grows_by = fastrand::u64(0..2);
        until(&format!("round {grows_by} of process {kill}"), || {
            audit_len(&audit) >= before + grows_by || process.exited().unwrap().is_some()
        })
        .await;
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..300_000))).await;
        process.kill().unwrap();
    }
    let (start, lines) = (Instant::now(), audit_lines(&audit));
    let mut process = Process::spawn(&redrive(&scene, &arguments), &log).unwrap();
    until("the last process ends", || process.exited().unwrap().is_some()).await;
    let status = process.wait(TIMEOUT).unwrap();
    let text = std::fs::read_to_string(&audit).unwrap();
    let last: Vec<_> = text.lines().skip(lines).collect();
    // Parked letters need attention, unless a killed process has handled them all.
    let is_parked = last.iter().any(|line| line.contains(r#""outcome":"parked""#));
    let code = status.unwrap().code();
    assert_eq!(code, Some(i32::from(is_parked)), "{}", process.log().unwrap());
    println!("the last process handled {} letters in {:?}", last.len(), start.elapsed());

    let failed = (0..letters).filter(|number| number % 10 <= 6).count();
    // The time limit is that of each record, so that it suits any number of letters.
    let processed = || runs.lock().unwrap().len();
    let mut count = processed();
    while count < failed && is_met(|| processed() > count).await {
        count = processed();
    }
    // The lag of a partition without records is unknown.
    let at_end =
        || handle.status().partitions.iter().all(|partition| partition.lag.unwrap_or(0) == 0);
    if count < failed || !is_met(at_end).await {
        // What is missing is a violation below.
        println!("the consumer has stalled: {:#?}", handle.status());
    }
    handle.shutdown();
    serving.await.unwrap();

    let violations = violations(letters, &runs.lock().unwrap(), &audit);
    println!(
        "storm: redrive: {letters} records, {letters} keys, 0 runs again (), {} violations; {kills} \
         kills",
        violations.len()
    );
    assert!(violations.is_empty(), "seed {seed}: {violations:?}");
}

/// Compares the runs of the handler and the audit with what is expected of each letter.
fn violations(letters: usize, runs: &BTreeMap<String, usize>, audit: &Path) -> Vec<String> {
    let mut outcomes = BTreeMap::<String, BTreeSet<String>>::new();
    for line in std::fs::read_to_string(audit).unwrap().lines() {
        // A kill may have cut a line. Its letter is handled again.
        let Ok(line) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let text = |field: &str| line[field].as_str().unwrap().to_owned();
        outcomes.entry(text("key")).or_default().insert(text("outcome"));
    }
    let mut violations = Vec::new();
    for number in 0..letters {
        let (kind, expected_runs, allowed) = match number % 10 {
            // Only produced, if a process was killed after it had reopened the key; skipped, if after it
            // had produced the record.
            0..=6 => (FAILED, 1, &["reopened", "produced", "skipped"][..]),
            7 | 8 => (COMPLETED, 0, &["skipped"][..]),
            _ => (TRUNCATED, 0, &["parked"][..]),
        };
        let key = format!("{kind}-{number}");
        let runs = runs.get(&key).copied().unwrap_or(0);
        if runs != expected_runs {
            violations.push(format!("{key}: {runs} runs"));
        }
        let seen = outcomes.get(&key).cloned().unwrap_or_default();
        if seen.is_empty() || !seen.iter().all(|outcome| allowed.contains(&&**outcome)) {
            violations.push(format!("{key}: {seen:?}"));
        }
    }
    violations
}
