//! Steps of a handler: which run, what is recorded, and how they fail.

mod crashing;
mod dropping;
mod renewing;
mod results;
mod settling;
mod unrecordable;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use campanile_core::limits::MAX_STEPS_BYTES;
use campanile_core::{
    BoxError, Command, Grant, IdempotencyKey, LockHandle, Namespace, Operation, Request, Retention,
    State, StepError,
};
use campanile_idempotency::Store;
use campanile_idempotency::policy::OnLost;
use campanile_idempotency::reply::ReplyCipher;
use campanile_test::faults::Fault;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tower::{Layer, service_fn};

use crate::harness::{
    CallResult, HOUR, Harness, TTL, TestLayer, TestService, exhausted, failed, layer_error, lock,
    request, store_key,
};

/// The steps that have run.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<Vec<String>>>);

impl Runs {
    /// A step that succeeds with the number of this run.
    async fn step(&self, lock: &LockHandle, name: &str) -> Result<usize, BoxError> {
        lock.step(name, async || {
            let mut runs = self.0.lock().unwrap();
            runs.push(name.to_owned());
            Ok(runs.len())
        })
        .await
    }

    fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

fn service<T, F, Fut>(layer: &TestLayer, handle: F) -> impl TestService<T> + use<T, F, Fut>
where
    F: Fn(LockHandle) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Result<T, BoxError>> + Send + 'static,
    T: Send + 'static,
{
    layer.layer(service_fn(move |request: Request<()>| handle(lock(&request))))
}

/// The error of the handler's step in the result of a call.
fn step_error<T: std::fmt::Debug>(result: &CallResult<T>) -> &StepError {
    failed(result).source.downcast_ref().unwrap()
}

/// The names of the recorded steps.
fn recorded(harness: &Harness, id: &str) -> Vec<String> {
    let entry = harness.entry(id).unwrap();
    entry.steps().map_or(Vec::new(), |steps| steps.names().map(Into::into).collect())
}

#[tokio::test(start_paused = true)]
async fn step_runs_once_and_its_result_is_used_later() {
    let harness = Harness::new();
    let runs = Runs::default();
    let handle = {
        let runs = runs.clone();
        move |lock: LockHandle| {
            let runs = runs.clone();
            async move {
                let reserved = runs.step(&lock, "reserve").await?;
                let charged = runs.step(&lock, "charge").await?;
                match lock.attempt() {
                    1 => Err("gateway busy".into()),
                    _ => Ok((reserved, charged)),
                }
            }
        }
    };
    let service = service(&harness.layer(), handle);
    service.run("p-1").await.unwrap_err();
    assert_eq!(recorded(&harness, "p-1"), ["reserve", "charge"]);
    sleep(HOUR).await;
    let outcome = service.run("p-1").await.unwrap();
    assert_eq!(outcome.into_reply(), Some((1, 2)));
    assert_eq!(runs.names(), ["reserve", "charge"]);
    // A completed entry has none.
    assert_eq!(recorded(&harness, "p-1"), [""; 0]);
    assert_eq!(harness.store.count("record_step"), 2);
}

#[tokio::test(start_paused = true)]
async fn handler_without_steps_sends_no_command_for_them() {
    let harness = Harness::new();
    let service = service(&harness.layer(), async |_| Ok(()));
    service.run("p-1").await.unwrap();
    assert_eq!(harness.store.calls().len(), 2, "acquire and complete");
}

#[tokio::test(start_paused = true)]
async fn renamed_step_runs_and_removed_step_is_ignored() {
    let harness = Harness::new();
    let runs = Runs::default();
    for names in [["reserve", "charge"], ["hold", "charge"]] {
        let runs = runs.clone();
        let handle = move |lock: LockHandle| {
            let runs = runs.clone();
            async move {
                for name in names {
                    runs.step(&lock, name).await?;
                }
                Err::<(), _>("gateway busy".into())
            }
        };
        service(&harness.layer(), handle).run("p-1").await.unwrap_err();
        sleep(HOUR).await;
    }
    assert_eq!(runs.names(), ["reserve", "charge", "hold"]);
    assert_eq!(recorded(&harness, "p-1"), ["reserve", "charge", "hold"]);
}

#[tokio::test(start_paused = true)]
async fn failed_step_is_not_recorded() {
    let harness = Harness::new();
    let handle = async |lock: LockHandle| {
        lock.step("charge", async || match lock.attempt() {
            1 => Err(BoxError::from("gateway busy")),
            attempt => Ok(attempt),
        })
        .await
    };
    let service = service(&harness.layer(), handle);
    let first = service.run("p-1").await;
    assert_eq!(failed(&first).source.to_string(), "gateway busy");
    assert_eq!(recorded(&harness, "p-1"), [""; 0]);
    sleep(HOUR).await;
    assert_eq!(service.run("p-1").await.unwrap().into_reply(), Some(2));
}

#[tokio::test(start_paused = true)]
async fn repeated_or_invalid_name_is_refused_before_the_step_runs() {
    let harness = Harness::new();
    let long = "n".repeat(65);
    for (id, name) in [("p-1", "charge"), ("p-2", ""), ("p-3", &*long)] {
        let name = name.to_owned();
        let runs = Runs::default();
        let counted = runs.clone();
        let handle = move |lock: LockHandle| {
            let (runs, name) = (counted.clone(), name.clone());
            async move {
                runs.step(&lock, "charge").await?;
                runs.step(&lock, &name).await
            }
        };
        let result = service(&harness.layer(), handle).run(id).await;
        match step_error(&result) {
            StepError::Repeated { .. } => assert_eq!(id, "p-1"),
            StepError::InvalidName { .. } => assert_ne!(id, "p-1"),
            other => panic!("{other:?}"),
        }
        assert_eq!(runs.names(), ["charge"]);
    }
}

#[tokio::test(start_paused = true)]
async fn longest_name_is_recorded() {
    let harness = Harness::new();
    let name = "n".repeat(64);
    let used = name.clone();
    let handle = move |lock: LockHandle| {
        let name = used.clone();
        async move {
            lock.step(&name, async || Ok::<_, BoxError>(())).await?;
            Err::<(), _>("gateway busy".into())
        }
    };
    service(&harness.layer(), handle).run("p-1").await.unwrap_err();
    assert_eq!(recorded(&harness, "p-1"), [name]);
}

#[tokio::test(start_paused = true)]
async fn concurrent_steps_are_all_recorded() {
    let harness = Harness::new();
    let runs = Runs::default();
    let counted = runs.clone();
    let handle = move |lock: LockHandle| {
        let runs = counted.clone();
        async move {
            let names: Vec<_> = (0..20).map(|number| format!("line-{number}")).collect();
            let steps = join_all(names.iter().map(|name| runs.step(&lock, name))).await;
            assert!(steps.iter().all(Result::is_ok), "{steps:?}");
            Err::<(), _>("gateway busy".into())
        }
    };
    let service = service(&harness.layer(), handle);
    service.run("p-1").await.unwrap_err();
    assert_eq!(recorded(&harness, "p-1").len(), 20);
    sleep(HOUR).await;
    service.run("p-1").await.unwrap_err();
    assert_eq!(runs.names().len(), 20, "no step has run twice");
}

#[tokio::test(start_paused = true)]
async fn locks_are_renewed_between_many_steps() {
    let harness = Harness::new();
    let handle = async |lock: LockHandle| {
        for number in 0..100 {
            lock.step(&number.to_string(), async || {
                sleep(TTL / 10).await;
                Ok::<_, BoxError>(())
            })
            .await?;
        }
        Ok(())
    };
    service(&harness.layer(), handle).run("p-1").await.unwrap();
    assert!(harness.store.count("renew") >= 29, "{} renewals", harness.store.count("renew"));
}

#[tokio::test(start_paused = true)]
async fn record_is_repeated_until_the_store_answers() {
    for fault in [Fault::LoseReply, Fault::Refuse, Fault::Hang, Fault::HangReply] {
        let harness = Harness::new();
        harness.store.inject_next_of("record_step", fault);
        let runs = Runs::default();
        let counted = runs.clone();
        let handle = move |lock: LockHandle| {
            let runs = counted.clone();
            async move {
                runs.step(&lock, "charge").await?;
                Err::<(), _>("gateway busy".into())
            }
        };
        let service = service(&harness.layer(), handle);
        let result = service.run("p-1").await;
        assert_eq!(failed(&result).source.to_string(), "gateway busy", "{fault:?}");
        assert_eq!(recorded(&harness, "p-1"), ["charge"], "{fault:?}");
        sleep(HOUR).await;
        service.run("p-1").await.unwrap_err();
        assert_eq!(runs.names().len(), 1, "{fault:?}");
        harness.store.heal();
    }
}

#[tokio::test(start_paused = true)]
async fn handler_learns_that_a_step_is_not_recorded() {
    for fault in [Fault::Refuse, Fault::LoseReply, Fault::Hang] {
        let harness = Harness::new();
        harness.store.inject_always_of("record_step", fault);
        let seen = Arc::new(Mutex::new(None));
        let noted = seen.clone();
        let handle = move |lock: LockHandle| {
            let noted = noted.clone();
            async move {
                let started = Instant::now();
                let step = lock.step("charge", async || Ok::<_, StepError>(())).await;
                // The lock is still held, so that the handler can react.
                *noted.lock().unwrap() = Some((started.elapsed(), lock.check().is_ok()));
                Ok(step?)
            }
        };
        let result = service(&harness.layer(), handle).run("p-1").await;
        let error = step_error(&result);
        assert!(matches!(error, StepError::NotRecorded { .. }), "{error:?}");
        let (waited, is_held) = seen.lock().unwrap().take().unwrap();
        assert!((TTL / 2..TTL * 3 / 4).contains(&waited), "{fault:?}: {waited:?}");
        assert!(is_held);
        let expected: &[&str] = if matches!(fault, Fault::LoseReply) { &["charge"] } else { &[] };
        assert_eq!(recorded(&harness, "p-1"), expected, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn handler_learns_that_concurrent_steps_are_not_recorded() {
    let harness = Harness::new();
    let store = harness.store.clone();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    let handle = move |lock: LockHandle| {
        let (store, noted) = (store.clone(), noted.clone());
        async move {
            // Also the renewals, so that there is no time to try one step after the other.
            store.inject_always(Fault::Hang);
            let lines: Vec<_> = (0..6).map(|line| format!("line-{line}")).collect();
            let steps = lines.iter().map(|line| lock.step(line, async || Ok::<_, StepError>(())));
            let results = join_all(steps).await;
            store.heal();
            noted.lock().unwrap().extend(results.into_iter().map(|it| (it, lock.check().is_ok())));
            Err::<(), _>(BoxError::from("not recorded"))
        }
    };
    assert!(service(&harness.layer(), handle).run("p-1").await.is_err());
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 6);
    for (result, is_held) in &*seen {
        assert!(matches!(result, Err(StepError::NotRecorded { .. })), "{result:?}");
        assert!(is_held);
    }
}

#[tokio::test(start_paused = true)]
async fn handler_learns_that_a_step_is_not_recorded_before_the_lock_is_lost() {
    let harness = Harness::new();
    let store = harness.store.clone();
    let seen = Arc::new(Mutex::new(None));
    let noted = seen.clone();
    let handle = move |lock: LockHandle| {
        let (store, noted) = (store.clone(), noted.clone());
        async move {
            // Just before the first renewal, which fails as well.
            sleep(TTL / 4).await;
            store.inject_always(Fault::Refuse);
            let step = lock.step("charge", async || Ok::<_, StepError>(())).await;
            *noted.lock().unwrap() = Some(lock.check().is_ok());
            Ok(step?)
        }
    };
    let hang = async {
        // A call that begins now ends after the lock.
        sleep(TTL * 73 / 100).await;
        harness.store.heal();
        harness.store.inject_always(Fault::Hang);
        sleep(TTL).await;
        harness.store.heal();
    };
    let service = service(&harness.layer(), handle);
    let (result, ()) = tokio::join!(service.run("p-1"), hang);
    let error = step_error(&result);
    assert!(matches!(error, StepError::NotRecorded { .. }), "{error:?}");
    assert_eq!(*seen.lock().unwrap(), Some(true));
}

#[tokio::test(start_paused = true)]
async fn large_result_is_permanent() {
    let harness = Harness::new();
    let handle = async |lock: LockHandle| {
        lock.step("charge", async || Ok::<_, BoxError>("x".repeat(MAX_STEPS_BYTES))).await
    };
    let result = service(&harness.layer(), handle).run("p-1").await;
    assert!(matches!(step_error(&result), StepError::TooLarge { .. }), "{result:?}");
    let failed = failed(&result);
    assert_eq!(failed.retry_after, None, "the step would run again");
    assert!(failed.take_lock().is_some());
}

#[tokio::test(start_paused = true)]
async fn result_of_another_type_is_an_error_and_not_a_run() {
    let harness = Harness::new();
    let runs = Runs::default();
    let counted = runs.clone();
    let handle = move |lock: LockHandle| {
        let runs = counted.clone();
        async move {
            match lock.attempt() {
                1 => runs.step(&lock, "charge").await.and(Err("gateway busy".into())),
                _ => lock.step("charge", async || Ok::<_, BoxError>("text".to_owned())).await,
            }
        }
    };
    let service = service(&harness.layer(), handle);
    service.run("p-1").await.unwrap_err();
    sleep(HOUR).await;
    let result = service.run("p-1").await;
    assert!(matches!(step_error(&result), StepError::Unreadable { .. }), "{result:?}");
    assert_eq!(recorded(&harness, "p-1"), ["charge"]);
}

#[tokio::test(start_paused = true)]
async fn stale_holder_records_nothing() {
    let harness = Harness::new();
    let layer = harness.layer().on_lost(OnLost::Notify);
    let handle = async |lock: LockHandle| {
        // Another owner is granted the key meanwhile, which this process does not know yet.
        lock.step("charge", async || {
            sleep(Duration::from_secs(1)).await;
            Ok::<_, BoxError>(())
        })
        .await
    };
    let call = service(&layer, handle).start(request("p-1"));
    sleep(Duration::from_millis(500)).await;
    harness.take_over("p-1").await;
    let entry = harness.entry("p-1").unwrap();
    let grant = Grant { token: entry.token(), owner: entry.owner().unwrap() };
    let operation = Operation::RecordStep { grant, name: "charge".into(), result: "999".into() };
    let command = Command { key: store_key("p-1"), operation, retention: Retention::default() };
    harness.memory.apply(command).await.unwrap();
    let result = call.await.unwrap();
    let error = layer_error(&result);
    let text = format!("{error:?}");
    assert!(text.contains("Superseded"), "{text}");
    assert_eq!(harness.state("p-1"), Some(State::Processing));
    let steps = harness.entry("p-1").unwrap().steps().cloned().unwrap();
    assert_eq!(steps.get("charge").unwrap(), "999");
    assert_eq!(steps.names().count(), 1);
}

#[tokio::test(start_paused = true)]
async fn lock_of_an_ended_attempt_runs_no_step() {
    let harness = Harness::new();
    let leaked = Arc::new(Mutex::new(None));
    let kept = leaked.clone();
    let handle = move |lock: LockHandle| {
        *kept.lock().unwrap() = Some(lock);
        async { Ok(()) }
    };
    service(&harness.layer(), handle).run("p-1").await.unwrap();
    let lock = leaked.lock().unwrap().take().unwrap();
    let result = lock.step("charge", async || -> Result<(), StepError> { panic!("runs") }).await;
    assert!(matches!(result, Err(StepError::LockLost(_))), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn lock_of_a_dead_letter_runs_no_step() {
    let harness = Harness::new();
    let layer = harness.layer_with(|config| config.with_max_attempts(1));
    let service = service(&layer, async |_| Err::<(), BoxError>("gateway busy".into()));
    drop(service.run("p-1").await);
    sleep(HOUR).await;
    let result = service.run("p-1").await;
    let held = exhausted(&result).take_lock().unwrap();
    let run = async || -> Result<(), StepError> { panic!("runs") };
    let result = held.lock_handle().step("charge", run).await;
    assert!(matches!(result, Err(StepError::NoHandler)), "{result:?}");
}

/// A cipher that shows how it was called.
struct Sealed;

impl ReplyCipher for Sealed {
    fn seal(&self, _: &Namespace, key: &IdempotencyKey, plain: Bytes) -> Result<Bytes, BoxError> {
        Ok([b"sealed:", key.as_bytes(), b":", &*plain].concat().into())
    }

    fn open(&self, _: &Namespace, key: &IdempotencyKey, sealed: Bytes) -> Result<Bytes, BoxError> {
        let prefix = [b"sealed:", key.as_bytes(), b":"].concat();
        let plain = sealed.strip_prefix(&*prefix).ok_or("not sealed for this key")?;
        Ok(Bytes::copy_from_slice(plain))
    }
}

#[tokio::test(start_paused = true)]
async fn results_are_encrypted_like_replies() {
    let harness = Harness::new();
    let layer = harness.layer().with_reply_encryption(Sealed);
    let runs = Runs::default();
    let counted = runs.clone();
    let handle = move |lock: LockHandle| {
        let runs = counted.clone();
        async move {
            runs.step(&lock, "charge").await?;
            Err::<(), _>("gateway busy".into())
        }
    };
    let service = service(&layer, handle);
    service.run("p-1").await.unwrap_err();
    let entry = harness.entry("p-1").unwrap();
    let stored = entry.steps().unwrap().get("charge").unwrap();
    assert_eq!(stored, &b"sealed:p-1:\x06charge1"[..]);
    sleep(HOUR).await;
    let result = service.run("p-1").await;
    assert_eq!(failed(&result).source.to_string(), "gateway busy");
    assert_eq!(runs.names().len(), 1);
}
