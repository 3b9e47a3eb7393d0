//! A primary that dies with writes that its replica has not received.

use std::time::Duration;

use campanile_core::{Outcome, key};
use campanile_idempotency::IdempotencyLayer;
use campanile_postgres::{Inbox, PgStore, migrate};
use campanile_test::{PgServer, eventually};
use tower::{Layer, ServiceExt, service_fn};

use crate::fixture::{book, request};
use crate::support::{EVENT_TIMEOUT, long_timeouts};

const BOOKED: &str = "SELECT count(*) FROM ledger";

/// Waits until the server gives this answer to the query.
fn wait_for_answer(server: &PgServer, query: &str, answer: &str) {
    let has_answer = || server.psql(query).is_ok_and(|it| it == answer).then_some(());
    eventually(EVENT_TIMEOUT, has_answer)
        .unwrap_or_else(|| panic!("not within {EVENT_TIMEOUT:?}: {query}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn effect_lost_in_failover_is_lost_with_its_entry_and_redone_once() {
    let mut primary = PgServer::start().unwrap();
    migrate(long_timeouts(&primary.url())).await.unwrap();
    primary.psql("CREATE TABLE ledger (key text NOT NULL, cents bigint NOT NULL)").unwrap();
    let replica = primary.replica().unwrap();
    let url = format!("postgres://postgres@{},{}/postgres", primary.addr(), replica.addr());
    let inbox = Inbox::new(&PgStore::connect(long_timeouts(&url)).await.unwrap()).unwrap();
    let once = IdempotencyLayer::new(inbox.keeper(), "ledger", key::header("id")).unwrap();
    let ledger = inbox.layer(once).unwrap().layer(service_fn(book));
    let run = |id| ledger.clone().oneshot(request(id));

    assert_eq!(run("kept").await.unwrap(), Outcome::Processed(()));
    wait_for_answer(&replica, BOOKED, "1");
    // From here on the replica receives nothing.
    replica.psql("ALTER SYSTEM SET primary_conninfo = ''").unwrap();
    replica.psql("SELECT pg_reload_conf()").unwrap();
    wait_for_answer(&primary, "SELECT count(*) FROM pg_stat_replication", "0");
    assert_eq!(run("lost").await.unwrap(), Outcome::Processed(()));

    primary.kill().unwrap();
    replica.psql("SELECT pg_promote()").unwrap();
    wait_for_answer(&replica, "SELECT pg_is_in_recovery()", "f");
    // Both records are delivered again.
    let redelivery_is_duplicate = |id| async move {
        loop {
            match run(id).await {
                Ok(outcome) => return outcome.is_duplicate(),
                // The store has not found the new primary yet.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    assert!(redelivery_is_duplicate("kept").await);
    assert!(!redelivery_is_duplicate("lost").await);
    assert!(redelivery_is_duplicate("lost").await);
    assert_eq!(
        replica.psql("SELECT key, count(*) FROM ledger GROUP BY 1 ORDER BY 1").unwrap(),
        "kept|1\nlost|1"
    );
}
