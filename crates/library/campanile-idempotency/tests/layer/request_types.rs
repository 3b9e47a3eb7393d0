//! Other request types: `Runner`, `http`, `WithLock` and custom ones; and what `anyhow` errors need.

use std::fmt;
use std::time::Duration;

use campanile_core::{
    BoxError, CarryLock, Disposition, LockHandle, Outcome, Record, Request, WithLock, error,
};
use campanile_idempotency::policy::{OnExhausted, OnLocked, OnMissingKey};
use campanile_idempotency::{IdempotencyError, IdempotencyLayer, Runner, reply};
use tokio::time::sleep;
use tower::{ServiceBuilder, ServiceExt};

use crate::harness::{Harness, TestService, failed, layer_error};

async fn unreachable_handler(_: Option<LockHandle>) -> Result<String, BoxError> {
    unreachable!("the function must not run")
}

#[tokio::test(start_paused = true)]
async fn guard_runs_function_once() {
    let harness = Harness::new();
    let runner = Runner::new(&harness.keeper, "jobs").unwrap();
    let (mut first, mut second) = (0, 0);
    let outcome = runner.run(7, async |lock: Option<LockHandle>| {
        first += 1;
        Ok::<_, BoxError>(lock.unwrap().attempt())
    });
    assert_eq!(outcome.await.unwrap(), Outcome::Processed(1));
    let outcome = runner.run("7", async |_| {
        second += 1;
        Ok::<_, BoxError>(0)
    });
    assert!(outcome.await.unwrap().is_duplicate(), "an integer key is its decimal text");
    assert_eq!((first, second), (1, 0));
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn runner_has_settings_of_its_layer() {
    let harness = Harness::new();
    let at_most = Duration::from_secs(60);
    let layer = harness
        .layer_with(|config| config.with_max_attempts(1))
        .on_locked(OnLocked::Wait { at_most })
        .on_missing_key(OnMissingKey::PassThrough)
        .on_exhausted(OnExhausted::GiveUp)
        .with_reply(reply::json());
    let runner = Runner::from(layer);

    let holder_runner = runner.clone();
    let holder = tokio::spawn(async move {
        let work = async |_: Option<LockHandle>| {
            sleep(Duration::from_secs(5)).await;
            Ok::<_, BoxError>("receipt".to_owned())
        };
        holder_runner.run("job-1", work).await
    });
    sleep(Duration::from_secs(1)).await;
    let again = runner.run("job-1", unreachable_handler).await.unwrap();
    assert_eq!(again.into_reply().as_deref(), Some("receipt"));
    assert!(holder.await.unwrap().is_ok());

    let missing =
        runner.run(None::<String>, async |lock| Ok::<_, BoxError>(lock.is_none().to_string()));
    assert!(matches!(missing.await.unwrap(), Outcome::WithoutLock(ran, _) if ran == "true"));
    let given_up = runner.run("job-2", async |_| Err::<String, BoxError>("no".into())).await;
    assert!(matches!(given_up.unwrap(), Outcome::GivenUp(_)));
}

#[tokio::test(start_paused = true)]
async fn function_with_invalid_key_never_runs() {
    let harness = Harness::new();
    let runner = Runner::new(&harness.keeper, "jobs").unwrap();
    let no_key: Result<String, &str> = Err("not a number");
    let result = runner.run(no_key, unreachable_handler).await;
    let IdempotencyError::InvalidKey(error) = layer_error(&result) else {
        panic!("expected an invalid key");
    };
    assert_eq!(error.to_string(), "not a number");
    let result = runner.run("", unreachable_handler).await;
    assert!(matches!(layer_error(&result), IdempotencyError::MissingKey));
}

#[tokio::test(start_paused = true)]
async fn http_request_carries_its_lock() {
    let harness = Harness::new();
    let by_header = |request: &http::Request<()>| {
        let key = request.headers().get("idempotency-key")?;
        Some(key.as_bytes().to_vec())
    };
    let service = ServiceBuilder::new()
        .layer(IdempotencyLayer::new(&harness.keeper, "http", by_header).unwrap())
        .service_fn(async |request: http::Request<()>| {
            let lock = request.extensions().get::<LockHandle>().unwrap();
            assert_eq!(request.lock().unwrap().token(), lock.token());
            Ok::<_, BoxError>(http::Response::new(lock.attempt()))
        });
    let post = || {
        let request = http::Request::post("/payments").header("idempotency-key", "p-1");
        request.body(()).unwrap()
    };
    let outcome = service.clone().oneshot(post()).await.unwrap();
    assert_eq!(outcome.into_reply().unwrap().into_body(), 1);
    assert!(service.clone().oneshot(post()).await.unwrap().is_duplicate());
    let keyless = http::Request::post("/payments").body(()).unwrap();
    service.oneshot(keyless).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn foreign_request_is_wrapped() {
    let harness = Harness::new();
    let by_length = |job: &WithLock<Vec<u8>>| job.len();
    let service = ServiceBuilder::new()
        .map_request(WithLock::new)
        .layer(IdempotencyLayer::new(&harness.keeper, "jobs", by_length).unwrap())
        .service_fn(async |job: WithLock<Vec<u8>>| {
            assert_eq!(job.lock_handle().unwrap().key().as_bytes(), b"3");
            Ok::<_, BoxError>(job.into_inner())
        });
    let outcome = service.clone().oneshot(vec![1, 2, 3]).await.unwrap();
    assert_eq!(outcome, Outcome::Processed(vec![1, 2, 3]));
    assert!(service.oneshot(vec![4, 5, 6]).await.unwrap().is_duplicate());
}

/// A custom request type.
struct Job {
    id: u64,
    lock: Option<LockHandle>,
}

impl CarryLock for Job {
    fn set_lock(&mut self, lock: LockHandle) {
        self.lock = Some(lock);
    }

    fn lock_handle(&self) -> Option<&LockHandle> {
        self.lock.as_ref()
    }
}

#[tokio::test(start_paused = true)]
async fn custom_request_carries_its_lock() {
    let harness = Harness::new();
    let service = ServiceBuilder::new()
        .layer(IdempotencyLayer::new(&harness.keeper, "jobs", |job: &Job| job.id).unwrap())
        .service_fn(async |job: Job| Ok::<_, BoxError>(job.lock_handle().unwrap().attempt()));
    let job = |id| Job { id, lock: None };
    assert_eq!(service.clone().oneshot(job(7)).await.unwrap(), Outcome::Processed(1));
    assert!(service.oneshot(job(7)).await.unwrap().is_duplicate());
}

#[derive(Debug)]
struct Declined;

impl fmt::Display for Declined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("declined")
    }
}

impl std::error::Error for Declined {}

#[tokio::test(start_paused = true)]
async fn handler_error_is_found_through_all_layers() {
    let harness = Harness::new();
    let service = ServiceBuilder::new()
        .timeout(Duration::from_secs(60))
        .layer(harness.layer())
        .timeout(Duration::from_secs(10))
        .service_fn(async |_: Request<()>| Err::<(), _>(Declined));
    let result = service.run("p-1").await;
    let error = result.unwrap_err();
    assert!(error::find::<Declined>(&*error).is_some());
    assert!(IdempotencyError::find(&*error).is_some());
}

/// A plainly boxed `anyhow` error hides the error it was created from; anyhow's own conversion does
/// not.
#[tokio::test(start_paused = true)]
async fn anyhow_error_is_found_if_reallocated_outside_handler() {
    let harness = Harness::new();
    let service = ServiceBuilder::new()
        .layer(harness.layer())
        .map_err(|error: anyhow::Error| error.reallocate_into_boxed_dyn_error_without_backtrace())
        .service_fn(async |request: Request<()>| {
            let error = match request.lock().unwrap().key().as_bytes() {
                b"bare" => anyhow::Error::new(Declined),
                _ => anyhow::Error::new(Declined).context("charging"),
            };
            Err::<(), _>(error)
        });
    for id in ["bare", "with context"] {
        let result = service.run(id).await;
        assert!(error::find::<Declined>(&*failed(&result).source).is_some(), "{id}");
    }
}

/// An error type that hides what it contains, as `#[error(transparent)]` does.
#[derive(Debug)]
struct Transparent(error::Permanent);

impl fmt::Display for Transparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Transparent {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

#[tokio::test(start_paused = true)]
async fn marker_and_error_that_another_type_hides_are_seen() {
    fn permanent() -> error::Permanent {
        error::permanent(Declined)
    }
    let errors: [fn() -> BoxError; 5] = [
        || permanent().into(),
        || Transparent(permanent()).into(),
        || anyhow::Error::new(permanent()).into(),
        || anyhow::Error::new(permanent()).context("charging").into(),
        || anyhow::Error::new(Transparent(permanent())).into(),
    ];
    for error in errors {
        let harness = Harness::new();
        let service = ServiceBuilder::new()
            .layer(harness.layer())
            .service_fn(move |_: Request<()>| async move { Err::<(), _>(error()) });
        let result = service.run("p-1").await;
        let failed = failed(&result);
        assert_eq!(failed.disposition, Disposition::DeadLetter, "{:?}", error());
        assert!(error::find::<Declined>(&*failed.source).is_some(), "{:?}", error());
    }
}

#[tokio::test(start_paused = true)]
async fn marker_around_anyhow_error_is_respected() {
    let harness = Harness::new();
    let service = ServiceBuilder::new()
        .layer(harness.layer())
        .map_err(error::permanent)
        .service_fn(async |_: Request<()>| Err::<(), _>(anyhow::Error::new(Declined)));
    let result = service.run("p-1").await;
    assert_eq!(failed(&result).disposition, Disposition::DeadLetter);
}

#[tokio::test(start_paused = true)]
async fn outer_decoder_turns_record_into_request() {
    let harness = Harness::new();
    let service = ServiceBuilder::new()
        .layer(campanile_core::DecodeLayer::json())
        .layer({
            let by_body = campanile_core::key::field(|id: &String| id);
            IdempotencyLayer::new(&harness.keeper, "payments", by_body).unwrap()
        })
        .service_fn(async |request: Request<String>| Ok::<_, BoxError>(request.into_body()));
    let record = |payload: &'static str| Record::builder("payments", 0, 0).payload(payload).build();
    let outcome = service.clone().oneshot(record(r#""p-1""#)).await.unwrap();
    assert_eq!(outcome, Outcome::Processed("p-1".to_owned()));
    service.clone().oneshot(record("p-1")).await.unwrap_err();
    assert!(service.oneshot(record(r#""p-1""#)).await.unwrap().is_duplicate());
    assert_eq!(harness.store.count("acquire"), 2, "a decode error acquires no lock");
}
