//! The result that a handler gets from its step.

use campanile_core::{BoxError, LockHandle, StepError};
use campanile_test::faults::Fault;
use tokio::time::{Duration, sleep, timeout};

use super::{Runs, recorded, service, step_error};
use crate::harness::{HOUR, Harness, TestService, failed};

#[tokio::test(start_paused = true)]
async fn each_attempt_gets_what_json_keeps() {
    let harness = Harness::new();
    let handle = async |lock: LockHandle| {
        let result = lock.step("charge", async || Ok::<_, BoxError>(Some(()))).await?;
        assert_eq!(result, None, "attempt {}", lock.attempt());
        Err::<(), _>("gateway busy".into())
    };
    let service = service(&harness.layer(), handle);
    for _ in 0..2 {
        let result = service.run("p-1").await;
        assert_eq!(failed(&result).source.to_string(), "gateway busy");
        sleep(HOUR).await;
    }
}

#[tokio::test(start_paused = true)]
async fn result_that_does_not_read_back_is_permanent() {
    let harness = Harness::new();
    let handle =
        async |lock: LockHandle| lock.step("rate", async || Ok::<_, BoxError>(f64::NAN)).await;
    let result = service(&harness.layer(), handle).run("p-1").await;
    assert!(matches!(step_error(&result), StepError::NotEncoded { .. }), "{result:?}");
    assert_eq!(failed(&result).retry_after, None, "the step would run again");
    assert_eq!(recorded(&harness, "p-1"), [""; 0]);
}

/// As in an inbox, which runs its handler again after a conflict.
#[tokio::test(start_paused = true)]
async fn restarted_handler_keeps_a_result_that_may_be_recorded() {
    for fault in [Fault::Hang, Fault::HangReply] {
        let harness = Harness::new();
        harness.store.inject_next_of("record_step", fault);
        let runs = Runs::default();
        let counted = runs.clone();
        let handle = move |lock: LockHandle| {
            let runs = counted.clone();
            async move {
                let first = timeout(Duration::from_millis(1), runs.step(&lock, "charge")).await;
                assert!(first.is_err(), "{first:?}");
                lock.restart_steps();
                let charged = runs.step(&lock, "charge").await?;
                Err::<(), _>(format!("charged {charged}").into())
            }
        };
        let result = service(&harness.layer(), handle).run("p-1").await;
        assert_eq!(failed(&result).source.to_string(), "charged 1", "{fault:?}");
        assert_eq!(runs.names().len(), 1, "{fault:?}");
        let entry = harness.entry("p-1").unwrap();
        assert_eq!(entry.steps().unwrap().get("charge").unwrap(), &b"1"[..], "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn restarted_handler_records_no_result_again() {
    let harness = Harness::new();
    let runs = Runs::default();
    let counted = runs.clone();
    let handle = move |lock: LockHandle| {
        let runs = counted.clone();
        async move {
            let first = runs.step(&lock, "charge").await?;
            lock.restart_steps();
            let second = runs.step(&lock, "charge").await?;
            Ok((first, second))
        }
    };
    let outcome = service(&harness.layer(), handle).run("p-1").await.unwrap();
    assert_eq!(outcome.into_reply(), Some((1, 1)));
    assert_eq!(harness.store.count("record_step"), 1);
}
