//! What `inspect` reports.

use std::time::Duration;

use campanile_admin::entries::{EntryReport, inspect, parse_digest};
use campanile_core::{
    Coordinates, Details, Entry, FencingToken, IdempotencyKey, Operation, Owner, StoreKey,
};
use campanile_idempotency::Found;
use serde_json::json;

use crate::planter::{DAY, MINUTE, Planter, TTL, namespace};

const RECORD: &str = "payments/3@42";

async fn text(planter: &Planter) -> String {
    inspect(&planter.store, &planter.key()).await.unwrap().to_string()
}

#[tokio::test]
async fn running_entry_names_process_record_and_lock() {
    let planter = Planter::new("p-1");
    planter.fail(planter.acquire(RECORD), Duration::ZERO, false);
    planter.advance(MINUTE);
    planter.acquire(RECORD);
    planter.advance(Duration::from_secs(10));
    let digest = inspect(&planter.store, &planter.key()).await.unwrap().digest();
    assert_eq!(
        text(&planter).await,
        format!(
            "key       p-1\n\
             entry     billing/{digest}\n\
             state     PROCESSING: attempt 2 has the lock until 2100-01-01T00:11:00.000Z (in 9 min 50 s), \
             unless renewed\n\
             attempts  2 counted, 0 interrupted, 0 give-ups\n\
             granted   2100-01-01T00:01:00.000Z (10 s ago)\n\
             process   pod-7/1\n\
             record    payments/3@42\n\
             error     card declined\n\
             token     4102444860000000\n\
             created   2100-01-01T00:00:00.000Z (1 min 10 s ago)\n\
             expires   2100-01-08T00:01:00.000Z (in 6 d 23 h)"
        )
    );
}

#[tokio::test]
async fn each_state_has_its_own_words() {
    let planter = Planter::new("p-1");
    assert!(text(&planter).await.contains("no entry"));
    let grant = planter.acquire(RECORD);
    planter.advance(TTL);
    assert!(text(&planter).await.contains("PROCESSING, stuck: its lock expired"));
    planter.fail(grant, MINUTE, false);
    assert!(text(&planter).await.contains("RETRYING: the next attempt may start at"));
    planter.advance(MINUTE);
    assert!(text(&planter).await.contains("RETRYING: due since"));
    let grant = planter.acquire(RECORD);
    planter.fail(grant, Duration::ZERO, true);
    assert!(text(&planter).await.contains("RETRYING: failed permanently"));
    let grant = planter.acquire(RECORD);
    assert!(text(&planter).await.contains("PROCESSING: is being given up"));
    planter.give_up(grant);
    assert!(text(&planter).await.contains("FAILED: given up at"));
}

#[tokio::test]
async fn details_of_an_earlier_grant_are_marked() {
    let planter = Planter::new("p-1");
    planter.fail(planter.acquire(RECORD), Duration::ZERO, false);
    planter.acquire("");
    assert!(text(&planter).await.contains("process   pod-7/1 (of an earlier grant)"));
}

#[tokio::test]
async fn steps_are_shown_by_name_and_without_results() {
    let planter = Planter::new("p-1");
    let grant = planter.acquire(RECORD);
    for name in ["reserve", "charge\u{1b}"] {
        let (name, result) = (name.into(), "secret".into());
        planter.apply(Operation::RecordStep { grant, name, result });
    }
    let report = inspect(&planter.store, &planter.key()).await.unwrap();
    let text = report.to_string();
    assert!(text.contains("\nsteps     reserve, charge\\u{1b}\n"), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["steps"], json!(["reserve", "charge\u{1b}"]));
    assert!(!text.contains("secret") && !json.to_string().contains("secret"));
}

#[tokio::test]
async fn details_cannot_control_the_terminal() {
    let planter = Planter::new("p-1");
    let owner = Owner::new(1).unwrap();
    let at = Coordinates { topic: "\u{1b}[2J".into(), partition: 0, offset: 0 };
    let details = Details::builder(owner).instance("pod\u{1b}[2J\r").coordinates(&at).build();
    planter.apply(Operation::Acquire {
        owner,
        ttl: MINUTE,
        max_attempts: 1,
        fingerprint: None,
        floor: FencingToken::ZERO,
        details: Some(details),
    });
    let report = inspect(&planter.store, &planter.key()).await.unwrap();
    assert!(!report.to_line().contains(char::is_control), "{}", report.to_line().escape_debug());
    let text = report.to_string();
    assert!(text.lines().all(|line| !line.contains(char::is_control)), "{}", text.escape_debug());
    assert!(text.contains("process   pod\u{fffd}[2J\u{fffd}"), "{}", text.escape_debug());
}

#[tokio::test]
async fn line_has_key_state_record_and_error() {
    let planter = Planter::new("p-1");
    planter.fail(planter.acquire(RECORD), MINUTE, false);
    assert_eq!(
        inspect(&planter.store, &planter.key()).await.unwrap().to_line(),
        "p-1  RETRYING: the next attempt may start at 2100-01-01T00:01:00.000Z (in 1 min)  \
         attempts 1  record payments/3@42  error: card declined"
    );
}

#[tokio::test]
async fn json_has_a_field_for_each_fact() {
    let planter = Planter::new("p-1");
    planter.fail(planter.acquire(RECORD), MINUTE, false);
    let report = inspect(&planter.store, &planter.key()).await.unwrap();
    let value = serde_json::to_value(&report).unwrap();
    assert_eq!(
        value,
        json!({
            "namespace": "billing",
            "digest": report.digest(),
            "key": "p-1",
            "state": "retrying",
            "attempts": 1,
            "interrupts": 0,
            "give_ups": 0,
            "permanent_failure": false,
            "released": false,
            "token": 4_102_444_800_000_000_u64,
            "created": "2100-01-01T00:00:00.000Z",
            "granted": "2100-01-01T00:00:00.000Z",
            "at": "2100-01-01T00:01:00.000Z",
            "expires": "2100-01-08T00:00:00.000Z",
            "error": "card declined",
            "process": "pod-7/1",
            "record": "payments/3@42",
        })
    );
}

#[tokio::test]
async fn digest_finds_the_entry_of_its_key() {
    let planter = Planter::new("p-1");
    planter.acquire(RECORD);
    let digest = inspect(&planter.store, &planter.key()).await.unwrap().digest();
    let key = StoreKey::from_digest(namespace(), parse_digest(&digest).unwrap());
    assert_eq!(inspect(&planter.store, &key).await.unwrap().name().as_deref(), Some("p-1"));
    for invalid in ["", "00", &"g".repeat(32), &format!("+{}", "0".repeat(31))] {
        assert!(parse_digest(invalid).is_err(), "{invalid}");
    }
}

#[tokio::test]
async fn long_or_missing_key_is_completed_by_the_operator() {
    let long = "x".repeat(300);
    let planter = Planter::new(&long);
    let grant = planter.acquire(RECORD);
    let report = inspect(&planter.store, &planter.key()).await.unwrap();
    assert_eq!(report.name(), Some(format!("{}…", "x".repeat(255))));
    let key = IdempotencyKey::new(long.clone()).unwrap();
    assert_eq!(report.with_key(&key).name(), Some(long));
    planter.complete(grant, "");
    let report = inspect(&planter.store, &planter.key()).await.unwrap();
    assert_eq!(report.name(), None);
    assert_eq!(report.with_key(&IdempotencyKey::new("other").unwrap()).name(), None);
}

#[tokio::test]
async fn unreadable_value_is_reported_with_its_reason() {
    let planter = Planter::new("p-1");
    let found = Found::Unreadable { reason: "first byte is 0xc2".into() };
    let now = inspect(&planter.store, &planter.key()).await.unwrap().now();
    let report = EntryReport::new(planter.key(), now, found);
    assert!(report.to_string().contains("unreadable: first byte is 0xc2"));
    let value = serde_json::to_value(&report).unwrap();
    assert_eq!(
        (&value["state"], &value["reason"]),
        (&json!("unreadable"), &json!("first byte is 0xc2"))
    );
}

#[tokio::test]
async fn expired_entry_is_absent() {
    let planter = Planter::new("p-1");
    planter.acquire(RECORD);
    planter.advance(DAY * 8);
    let value = inspect(&planter.store, &planter.key()).await.unwrap();
    assert_eq!(serde_json::to_value(&value).unwrap()["state"], "absent");
}

#[tokio::test]
async fn time_that_no_calendar_has_is_shown() {
    let planter = Planter::new("p-1");
    planter.acquire(RECORD);
    let mut bytes = planter.store.entry(&planter.key()).unwrap().to_bytes().to_vec();
    bytes[36..44].fill(0xFF);
    let now = inspect(&planter.store, &planter.key()).await.unwrap().now();
    let found = Found::Entry { entry: Entry::from_bytes(&bytes).unwrap(), expires_at: now };
    let report = EntryReport::new(planter.key(), now, found);
    assert!(serde_json::to_string(&report).unwrap().contains("9999-12-31"));
}
