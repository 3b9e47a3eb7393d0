//! The last statement of a transaction: which grant may complete an entry, and when.

use campanile_core::Reply;
use tokio_postgres::error::SqlState;

use crate::support::{Database, acquire, acquire_grant, apply, complete, key};

/// The query for all columns of the entry.
const ENTRY: &str = "SELECT e FROM campanile.entry e";

#[tokio::test]
async fn conclude_replaces_details_and_drops_them_without_any() {
    let database = Database::new().await;
    let store = database.store().await;
    let client = database.client().await;
    for (details, kept) in [("NULL", ""), ("'new'", "new")] {
        database.psql("DELETE FROM campanile.entry");
        acquire_grant(&store, &key("key"), 1).await;
        database.psql("UPDATE campanile.entry SET details = 'old'");
        let statement = format!(
            "BEGIN; SET LOCAL campanile.inbox = 'open'; \
             SELECT campanile.conclude(namespace, key, token, owner, NULL, {details}, 60000000) \
             FROM campanile.entry; COMMIT"
        );
        client.batch_execute(&statement).await.unwrap();
        let stored = "SELECT state, encode(details, 'escape') FROM campanile.entry";
        assert_eq!(database.psql(stored), format!("C|{kept}"), "{details}");
    }
}

#[tokio::test]
async fn entry_is_concluded_once_and_only_by_its_current_grant() {
    let database = Database::new().await;
    let store = database.store().await;
    let client = database.client().await;
    let key = key("key");
    let grant = acquire_grant(&store, &key, 1).await;
    let (token, owner) = (grant.token.get().cast_signed(), grant.owner.get().cast_signed());
    let digest = &key.digest()[..];
    let namespace = key.namespace().as_str();
    let conclude = async |token: i64, owner: i64| -> Result<(), Option<SqlState>> {
        let code = |error: tokio_postgres::Error| error.code().cloned();
        client.batch_execute("BEGIN; SET LOCAL campanile.inbox = 'open'").await.map_err(code)?;
        let statement = "SELECT campanile.conclude($1, $2, $3, $4, NULL, NULL, 3600000000)";
        let concluded = client.execute(statement, &[&namespace, &digest, &token, &owner]).await;
        client.batch_execute("COMMIT").await.map_err(code)?;
        concluded.map(drop).map_err(code)
    };
    let grant_lost = Err(Some(SqlState::from_code("CI002")));

    let before = database.psql(ENTRY);
    assert_eq!(conclude(token + 1, owner).await, grant_lost, "a later grant of the same owner");
    assert_eq!(conclude(token - 1, owner).await, grant_lost, "an earlier grant of the same owner");
    assert_eq!(conclude(token, owner + 1).await, grant_lost, "another owner");
    assert_eq!(database.psql(ENTRY), before);

    database.psql("UPDATE campanile.entry SET expires_at = clock_timestamp()");
    let before = database.psql(ENTRY);
    assert_eq!(conclude(token, owner).await, grant_lost, "an expired entry");
    assert_eq!(database.psql(ENTRY), before);

    database.psql("UPDATE campanile.entry SET expires_at = clock_timestamp() + interval '1 h'");
    assert_eq!(conclude(token, owner).await, Ok(()));
    let kept = "SELECT state, at <= clock_timestamp(), expires_at - at BETWEEN '3599 s' AND '3601 s' FROM campanile.entry";
    assert_eq!(database.psql(kept), "C|t|t");
    let before = database.psql(ENTRY);
    assert_eq!(conclude(token, owner).await, grant_lost, "a second time");
    assert_eq!(database.psql(ENTRY), before);
    let again = apply(&store, &key, complete(grant, b"")).await.unwrap();
    assert_eq!(again, Reply::Completed);
    assert!(matches!(apply(&store, &key, acquire(2)).await.unwrap(), Reply::Duplicate { .. }));
}
