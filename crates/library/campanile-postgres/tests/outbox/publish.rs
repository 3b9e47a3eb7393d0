//! Messages are written with the transaction or not at all, and are published unchanged.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use campanile_core::{BoxError, Outcome, Output, Record, Request, Timestamp};
use campanile_idempotency::policy::OnMissingKey;
use campanile_postgres::Transaction;
use tower::{Layer, ServiceExt, service_fn};

use crate::brokers::text;
use crate::fixture::{Fixture, bill, id_headers, publish};

#[tokio::test]
async fn only_committed_messages_are_published() {
    let fixture = Fixture::new().await;
    let relay = fixture.relay();
    let failing = service_fn(async |request: Request<()>| {
        publish(&request, vec![bill("a", "failed")]).await?;
        Err::<(), BoxError>("no such account".into())
    });
    fixture.run(failing, "b-1").await.unwrap_err();
    let undone = service_fn(async |request: Request<()>| {
        let transaction = Transaction::from_request(&request)?;
        transaction.batch_execute("SAVEPOINT s").await?;
        transaction.publish(bill("a", "undone")).await?;
        transaction.batch_execute("ROLLBACK TO SAVEPOINT s").await?;
        Ok::<_, BoxError>(transaction.publish(bill("a", "kept")).await?)
    });
    fixture.run(undone, "b-2").await.unwrap();
    fixture.publish("b-1", [bill("a", "tried again")]).await;
    fixture.wait_until_empty().await;
    assert_eq!(fixture.brokers.payloads_of("a"), ["kept", "tried again"]);
    relay.stop().await;
}

#[tokio::test]
async fn message_is_published_unchanged() {
    let fixture = Fixture::new().await;
    let at = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
    let full = bill("\u{0}k", "\u{0}v")
        .timestamp(Timestamp::CreateTime(at(1_700_000_000_123)))
        .header("b", "2")
        .header("a", "1")
        .null_header("a");
    let mut binary = Output::to("a.b_c-9").key(vec![0xff, 0]).payload(vec![0x80; 100_000]);
    binary =
        binary.timestamp(Timestamp::CreateTime(SystemTime::UNIX_EPOCH - Duration::from_millis(5)));
    let given = [full, binary, Output::to("bills")];
    fixture.publish("b-1", given.clone()).await;
    let relay = fixture.relay();
    fixture.wait_until_empty().await;
    relay.stop().await;
    let mut published = fixture.brokers.published();
    published.sort_by_key(id_headers);
    assert_eq!(published.len(), 3);
    for (mut published_message, given) in published.into_iter().zip(given) {
        assert_eq!(id_headers(&published_message).len(), 1);
        published_message.headers.pop();
        if given.timestamp.is_none() {
            // The time of the call.
            let Some(Timestamp::CreateTime(at)) = published_message.timestamp.take() else {
                panic!("{:?}", published_message.timestamp);
            };
            assert!(at.elapsed().unwrap() < Duration::from_secs(600), "{at:?}");
        }
        assert!(published_message == given, "{published_message:?}");
    }
}

#[tokio::test]
async fn invalid_topic_name_is_rejected_when_written() {
    let fixture = Fixture::new().await;
    for topic in ["", "..", "a b", "ä", "a\0", &"x".repeat(250)] {
        let topic = Arc::<str>::from(topic);
        let handler = service_fn(move |request: Request<()>| {
            let topic = topic.clone();
            async move { publish(&request, vec![Output::to(topic)]).await }
        });
        fixture.run(handler, "b-1").await.unwrap_err();
    }
    assert_eq!(fixture.count_messages(), 0);
}

#[tokio::test]
async fn message_header_is_unique_and_the_same_in_every_run() {
    let fixture = Fixture::new().await;
    let runs = Arc::new(AtomicU32::new(0));
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let (counted, kept) = (runs.clone(), seen.clone());
    let handler = service_fn(move |request: Request<()>| {
        let (run, seen) = (counted.fetch_add(1, Ordering::Relaxed), kept.clone());
        async move {
            publish(&request, vec![bill("a", 0), bill("b", 1)]).await?;
            let transaction = Transaction::from_request(&request)?;
            let sql = "SELECT string_agg(encode(header_values[1], 'escape'), ' ' ORDER BY id) \
                       FROM campanile.outbox WHERE header_names = ARRAY['idempotency-key']";
            let row = transaction.query_one(sql, &[]).await?;
            seen.lock().unwrap().push(row.get(0));
            match run {
                0 => transaction.batch_execute("DO $$BEGIN RAISE SQLSTATE '40001'; END$$").await?,
                1 => return Err("another attempt".into()),
                _ => {}
            }
            Ok::<_, BoxError>(())
        }
    });
    fixture.run(handler.clone(), "b-1").await.unwrap_err();
    fixture.run(handler.clone(), "b-1").await.unwrap();
    fixture.run(handler, "b-2").await.unwrap();
    let seen = seen.lock().unwrap().clone();
    assert_eq!(runs.load(Ordering::Relaxed), 4);
    assert_eq!((&seen[0], &seen[1]), (&seen[1], &seen[2]));
    // The key of the entry, as the table shows it.
    let digest = fixture
        .database
        .psql("SELECT encode(key, 'hex') FROM campanile.entry ORDER BY created LIMIT 1");
    assert_eq!(seen[0], format!("bills/{digest}/0 bills/{digest}/1"));
    assert_ne!(seen[3], seen[0]);
}

#[tokio::test]
async fn existing_header_is_kept_and_none_is_added_without_a_lock() {
    let fixture = Fixture::new().await;
    fixture.publish("b-1", [bill("a", 0).header("idempotency-key", "mine")]).await;
    let handler =
        service_fn(async |request: Request<()>| publish(&request, vec![bill("b", 0)]).await);
    let idempotency_layer = fixture.idempotency_layer().on_missing_key(OnMissingKey::PassThrough);
    let record = Record::builder("payments", 0, 7).build();
    let stack = fixture.inbox.layer(idempotency_layer).unwrap().layer(handler);
    let outcome = stack.oneshot(Request::new(record, ())).await.unwrap();
    assert!(matches!(outcome, Outcome::WithoutLock(..)), "{outcome:?}");
    let relay = fixture.relay();
    fixture.wait_until_empty().await;
    relay.stop().await;
    let published = fixture.brokers.published();
    let id_headers = |key: &str| {
        let found = published.iter().find(|output| text(&output.key) == key);
        id_headers(found.unwrap())
    };
    assert_eq!((id_headers("a"), id_headers("b")), (vec!["mine".to_owned()], vec![]));
}
