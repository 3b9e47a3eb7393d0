//! What an entry says about the grant: the key, the process, the record and its trace.

use campanile_core::{BoxError, Details, Outcome, Record, Request, State, StoreKey};
use campanile_idempotency::{Found, InspectStore, ScanCursor, ScanFilter};
use tower::{Layer, ServiceExt, service_fn};

use crate::harness::{
    CallResult, HOUR, Harness, TTL, TestLayer, TestService, failing_service, layer_of, store_key,
};

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn traced_request() -> Request<()> {
    let record = Record::builder("payments", 3, 42).header("id", "p-1");
    Request::new(record.header("traceparent", TRACE).build(), ())
}

async fn run(layer: &TestLayer, reply: Result<(), &'static str>) -> CallResult<()> {
    let handler = move |_: Request<()>| async move { reply.map_err(BoxError::from) };
    layer.layer(service_fn(handler)).oneshot(traced_request()).await
}

fn details(harness: &Harness) -> Details {
    harness.entry("p-1").unwrap().details().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn running_entry_names_key_process_record_and_trace() {
    let harness = Harness::new();
    let keeper = harness.keeper.clone().with_instance("payments-7d9f/1");
    let (service, mut handle) = harness.mock_service(layer_of(&keeper, "payments".into()));
    let call = service.start(traced_request());
    let (_, response) = handle.next_request().await.unwrap();

    let entry = harness.entry("p-1").unwrap();
    let details = details(&harness);
    assert_eq!(entry.state(), State::Processing);
    assert_eq!(details.owner(), entry.owner());
    assert_eq!(details.key(), Some(&b"p-1"[..]));
    assert_eq!(details.instance().as_deref(), Some("payments-7d9f/1"));
    assert_eq!(details.coordinates().unwrap().to_string(), "payments/3@42");
    assert_eq!(details.trace().unwrap().to_string(), TRACE);

    response.send_response("done");
    call.await.unwrap().unwrap();
    assert_eq!(harness.entry("p-1").unwrap().details(), None);
}

#[tokio::test(start_paused = true)]
async fn instance_defaults_to_host_and_process_id() {
    let harness = Harness::new();
    run(&harness.layer(), Err("declined")).await.unwrap_err();
    let name = details(&harness).instance().unwrap().into_owned();
    let (host, process) = name.rsplit_once('/').unwrap();
    assert!(!host.is_empty());
    assert_eq!(process, std::process::id().to_string());
}

#[tokio::test(start_paused = true)]
async fn failed_attempt_keeps_details_and_error() {
    let harness = Harness::new();
    run(&harness.layer(), Err("declined")).await.unwrap_err();
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.error().as_deref()), (State::Retrying, Some("declined")));
    assert_eq!(details(&harness).key(), Some(&b"p-1"[..]));
}

#[tokio::test(start_paused = true)]
async fn next_grant_replaces_details() {
    let harness = Harness::new();
    run(&harness.layer(), Err("declined")).await.unwrap_err();
    tokio::time::advance(HOUR).await;
    let other = harness.other_process();
    let keeper = other.keeper.clone().with_instance("other");
    run(&layer_of(&keeper, "payments".into()), Err("declined")).await.unwrap_err();
    assert_eq!(details(&harness).instance().as_deref(), Some("other"));
}

#[tokio::test(start_paused = true)]
async fn keys_and_errors_are_not_stored_if_disabled() {
    let harness = Harness::new();
    let layer =
        harness.layer_with(|config| config.with_stored_keys(false).with_stored_errors(false));
    run(&layer, Err("declined: 4111 1111 1111 1111")).await.unwrap_err();
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.error()), (State::Retrying, None));
    assert_eq!(details(&harness).key(), None);
    assert_eq!(details(&harness).coordinates().unwrap().to_string(), "payments/3@42");
}

#[tokio::test(start_paused = true)]
async fn duplicate_has_details_of_first_run_if_kept() {
    let harness = Harness::new();
    let layer = harness.layer_with(|config| config.with_completed_details(true));
    run(&layer, Ok(())).await.unwrap();
    let Outcome::Duplicate(duplicate) = run(&layer, Ok(())).await.unwrap() else {
        panic!("not a duplicate");
    };
    let details = duplicate.details.unwrap();
    assert_eq!(details.trace().unwrap().to_string(), TRACE);
    assert_eq!(details.coordinates().unwrap().to_string(), "payments/3@42");
}

/// A duplicate in the same process is answered without a command to the store.
#[tokio::test(start_paused = true)]
async fn waiting_duplicate_has_details_of_first_run() {
    let harness = Harness::new();
    let layer = harness
        .layer_with(|config| config.with_completed_details(true))
        .on_locked(campanile_idempotency::policy::OnLocked::Wait { at_most: TTL });
    let (service, mut handle) = harness.mock_service(layer);
    let first = service.start(traced_request());
    let (_, response) = handle.next_request().await.unwrap();
    let second = service.start(traced_request());
    tokio::task::yield_now().await;
    response.send_response("done");
    first.await.unwrap().unwrap();
    let Outcome::Duplicate(duplicate) = second.await.unwrap().unwrap() else {
        panic!("not a duplicate");
    };
    assert_eq!(duplicate.details.unwrap().trace().unwrap().to_string(), TRACE);
    assert_eq!(harness.store.count("acquire"), 1);
}

#[tokio::test(start_paused = true)]
async fn memory_store_is_scanned_by_state_and_age() {
    let harness = Harness::new();
    let service = failing_service(&harness.layer(), || "declined".into());
    for number in 0..2_500 {
        service.run(&format!("p-{number}")).await.unwrap_err();
    }
    tokio::time::advance(HOUR).await;
    run(&layer_of(&harness.keeper, "others".into()), Err("declined")).await.unwrap_err();
    let done = harness.layer().layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    done.run("done").await.unwrap();

    let all = ScanFilter::new("payments".try_into().unwrap());
    assert_eq!(scan(&harness, &all).await.len(), 2_501);
    let retrying = all.clone().with_state(State::Retrying);
    assert_eq!(scan(&harness, &retrying).await.len(), 2_500);
    let completed = all.clone().with_state(State::Completed).with_state(State::Failed);
    assert_eq!(scan(&harness, &completed).await, [store_key("done")]);
    assert_eq!(scan(&harness, &all.clone().with_min_age(HOUR)).await.len(), 2_500);
    assert_eq!(scan(&harness, &all.with_min_age(2 * HOUR)).await.len(), 0);
}

/// Reads all pages.
async fn scan(harness: &Harness, filter: &ScanFilter) -> Vec<StoreKey> {
    let (mut keys, mut cursor) = (Vec::new(), Some(ScanCursor::default()));
    while let Some(from) = cursor {
        let page = harness.memory.scan(filter, &from).await.unwrap();
        keys.extend(page.entries.into_iter().map(|(key, _)| key));
        cursor = page.next;
    }
    keys
}

#[tokio::test(start_paused = true)]
async fn inspection_reports_entry_and_expiration_only() {
    let harness = Harness::new();
    let absent = harness.memory.inspect(&store_key("p-1")).await.unwrap();
    assert_eq!(absent.found, Found::Absent);
    run(&harness.layer(), Err("declined")).await.unwrap_err();
    let before = harness.entry("p-1");
    let inspection = harness.memory.inspect(&store_key("p-1")).await.unwrap();
    let Found::Entry { entry, expires_at } = inspection.found else {
        panic!("no entry");
    };
    assert_eq!(Some(entry), before);
    let week = 7 * 24 * HOUR;
    assert_eq!(expires_at.duration_since(inspection.now).unwrap(), week);
    assert_eq!(harness.entry("p-1"), before);
}
