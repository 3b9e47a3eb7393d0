//! A database's clock that is set ahead or back.

use std::time::Duration;

use campanile_core::limits::{MAX_BACKOFF, MAX_LOCK_TTL};
use campanile_core::{Operation, Reply};

use crate::support::{Database, acquire, acquire_grant, apply, complete, key};

#[tokio::test]
async fn clock_set_back_bounds_locks_and_repeats_no_token() {
    let database = Database::new().await;
    let store = database.store().await;
    let (held, waiting) = (key("held"), key("waiting"));
    let before = acquire_grant(&store, &held, 1).await;
    let failed = acquire_grant(&store, &waiting, 1).await;
    let fail = Operation::Fail {
        grant: failed,
        delay: Duration::from_secs(1),
        last: false,
        error: "no".into(),
    };
    apply(&store, &waiting, fail).await.unwrap();
    // Set the clock of the functions back by a week.
    database.psql(
        "DO $do$ DECLARE f record; BEGIN FOR f IN SELECT pg_get_functiondef(oid) AS text \
         FROM pg_proc WHERE pronamespace = 'campanile'::regnamespace LOOP \
         EXECUTE replace(f.text, 'clock_timestamp()', '(clock_timestamp() - interval ''7 days'')'); \
         END LOOP; END $do$",
    );
    let Reply::Locked { remaining } = apply(&store, &held, acquire(2)).await.unwrap() else {
        panic!("the key is not locked");
    };
    assert_eq!(remaining, MAX_LOCK_TTL);
    let Reply::BackingOff { remaining, .. } = apply(&store, &waiting, acquire(2)).await.unwrap()
    else {
        panic!("the key is not backing off");
    };
    assert_eq!(remaining, MAX_BACKOFF);
    let release = Operation::Release { grant: before, ran: true };
    assert_eq!(apply(&store, &held, release).await.unwrap(), Reply::Released);
    let after = acquire_grant(&store, &held, 2).await;
    assert!(after.token > before.token);
    let reply = apply(&store, &held, complete(before, b"late")).await.unwrap();
    assert_eq!(reply, Reply::Lost);
    let reply = apply(&store, &held, complete(after, b"done")).await.unwrap();
    assert_eq!(reply, Reply::Completed);
}
