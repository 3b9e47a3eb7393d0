//! Steps that have run with a result that cannot be recorded: the next attempt would run them again.

use std::error::Error;
use std::future::pending;

use campanile_core::limits::MAX_STEPS_BYTES;
use campanile_core::{BoxError, Disposition, LockHandle, classify, error};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::time::sleep;
use tower::load_shed::error::Overloaded;

use super::service;
use crate::harness::{HOUR, Harness, TestService, exhausted, failed};

/// Runs a step whose result is too large.
async fn run_large_step(lock: &LockHandle) {
    let step = lock.step("charge", async || Ok::<_, BoxError>("x".repeat(MAX_STEPS_BYTES)));
    step.await.unwrap_err();
}

/// Many error types hide the error of the step, for example `anyhow::Error`.
#[tokio::test(start_paused = true)]
async fn failure_is_permanent_whatever_the_error() {
    let harness = Harness::new();
    let errors: [fn() -> BoxError; 3] = [
        || "another text".into(),
        // Without the step, this would release the lock.
        || Overloaded::new().into(),
        || error::undone("rolled back").into(),
    ];
    for (number, error) in errors.into_iter().enumerate() {
        let handle = move |lock: LockHandle| async move {
            run_large_step(&lock).await;
            Err::<(), _>(error())
        };
        let result = service(&harness.layer(), handle).run(&format!("p-{number}")).await;
        assert_eq!(failed(&result).disposition, Disposition::DeadLetter, "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn marker_and_classifier_take_precedence() {
    let harness = Harness::new();
    let handle = async |lock: LockHandle| {
        run_large_step(&lock).await;
        Err::<(), BoxError>(error::retry_after("busy", HOUR).into())
    };
    let result = service(&harness.layer(), handle).run("p-1").await;
    assert_eq!(failed(&result).disposition, Disposition::Retry { after: Some(HOUR) });

    let layer = harness.layer().with_classifier(classify::on(|_: &Overloaded| Disposition::Stop));
    let handle = async |lock: LockHandle| {
        run_large_step(&lock).await;
        Err::<(), BoxError>(Overloaded::new().into())
    };
    let result = service(&layer, handle).run("p-2").await;
    assert_eq!(failed(&result).disposition, Disposition::Stop);

    // One that panics has no disposition.
    let layer = harness.layer().with_classifier(|_: &(dyn Error + 'static)| panic!("test panic"));
    let result = service(&layer, handle).run("p-3").await;
    assert_eq!(failed(&result).disposition, Disposition::DeadLetter);
}

/// As in an inbox, which runs its handler again after a conflict.
#[tokio::test(start_paused = true)]
async fn failure_of_a_restarted_handler_is_permanent() {
    let harness = Harness::new();
    let handle = async |lock: LockHandle| {
        run_large_step(&lock).await;
        lock.restart_steps();
        Err::<(), BoxError>("no connection".into())
    };
    let result = service(&harness.layer(), handle).run("p-1").await;
    assert_eq!(failed(&result).disposition, Disposition::DeadLetter);

    // The second call records a smaller result.
    let handle = async |lock: LockHandle| {
        run_large_step(&lock).await;
        lock.restart_steps();
        lock.step("other", async || Ok::<_, BoxError>(())).await?;
        Err::<(), BoxError>("no connection".into())
    };
    let result = service(&harness.layer(), handle).run("p-2").await;
    assert_eq!(failed(&result).disposition, Disposition::DeadLetter);
    let handle = async |lock: LockHandle| {
        lock.step("rate", async || Ok::<_, BoxError>(f64::NAN)).await.unwrap_err();
        lock.restart_steps();
        lock.step("rate", async || Ok::<_, BoxError>(1.0)).await?;
        Err::<(), BoxError>("no connection".into())
    };
    let result = service(&harness.layer(), handle).run("p-3").await;
    assert_eq!(failed(&result).disposition, Disposition::Retry { after: None });
}

#[tokio::test(start_paused = true)]
async fn panic_of_the_result_type_is_permanent() {
    struct Panicking;

    impl Serialize for Panicking {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            panic!("test panic")
        }
    }

    impl<'de> Deserialize<'de> for Panicking {
        fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            Err(D::Error::custom("never recorded"))
        }
    }

    let harness = Harness::new();
    let handle = async |lock: LockHandle| {
        lock.step("charge", async || Ok::<_, BoxError>(Panicking)).await.map(|_| ())
    };
    let result = service(&harness.layer(), handle).run("p-1").await;
    assert_eq!(failed(&result).disposition, Disposition::DeadLetter);
}

#[tokio::test(start_paused = true)]
async fn handler_that_hangs_or_is_dropped_runs_once() {
    let harness = Harness::new();
    let handle = async |lock: LockHandle| {
        run_large_step(&lock).await;
        pending::<Result<(), BoxError>>().await
    };
    let service = service(&harness.layer(), handle);
    service.run("p-1").await.unwrap_err();
    drop(tokio::time::timeout(HOUR / 60, service.run("p-2")).await);
    sleep(HOUR).await;
    for id in ["p-1", "p-2"] {
        let result = service.run(id).await;
        assert_eq!(exhausted(&result).attempts, 1, "{id}");
    }
}
