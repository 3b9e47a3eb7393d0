//! The signals that stop a program. A separate binary with a single test, because signals concern
//! the whole process.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "test helpers")]

#[allow(dead_code, reason = "shared with the other binary, which needs all of it")]
#[path = "../kafka/support.rs"]
mod support;

use std::time::Duration;

use campanile_core::{BoxError, Record};
use rustix::process::{Signal, getpid, kill_process};
use tower::service_fn;

use support::{Log, consumer, mock, until_committed, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_signal_drains_and_second_ends_the_drain() {
    for (first, second) in [(Signal::TERM, Signal::INT), (Signal::INT, Signal::INT)] {
        let kafka = mock("orders", 2, 1);
        let config = kafka.consumer_config("g");
        let (begun, (finish, finished)) = (Log::default(), tokio::sync::watch::channel(false));
        let seen = begun.clone();
        let service = service_fn(move |record: Record| {
            seen.push(&record);
            let mut finished = finished.clone();
            async move {
                match record.partition() {
                    0 => drop(finished.wait_for(|finished| *finished).await?),
                    _ => std::future::pending().await,
                }
                Ok::<_, BoxError>(())
            }
        });
        let consumer =
            consumer(config.clone(), "orders").with_drain_timeout(Duration::from_secs(3600));
        let serve = consumer.serve(service).with_shutdown_signals();
        let serving = tokio::spawn(serve.into_future());
        begun.reaches(2).await;

        kill_process(getpid(), first).unwrap();
        finish.send(true).unwrap();
        // The signal has not ended the process, and finished records are committed.
        until_committed(&config, "orders", &[1]).await;
        assert!(!serving.is_finished());

        kill_process(getpid(), second).unwrap();
        let summary = within("serving ends", serving).await.unwrap().unwrap();
        assert_eq!((summary.processed, summary.unfinished), (1, 1));
    }
}
