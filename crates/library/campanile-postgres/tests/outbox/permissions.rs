//! The documented permissions suffice for the outbox, and grant no access to its table.

use campanile_postgres::{Inbox, PgStore};

use crate::fixture::{Fixture, bill};
use crate::support::long_timeouts;

#[tokio::test]
async fn documented_permissions_suffice_for_publishing_and_relay() {
    let fixture = Fixture::new().await;
    fixture.database.psql(
        "CREATE ROLE app_with_an_outbox LOGIN; \
         GRANT USAGE ON SCHEMA campanile TO app_with_an_outbox; \
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA campanile TO app_with_an_outbox",
    );
    let url = fixture.database.url().replace("//postgres@", "//app_with_an_outbox@");
    let inbox = Inbox::new(&PgStore::connect(long_timeouts(&url)).await.unwrap()).unwrap();
    let fixture = Fixture { inbox, ..fixture };
    fixture.publish("b-1", [bill("a", 0)]).await;
    let relay = fixture.relay();
    fixture.wait_until_empty().await;
    relay.stop().await;
    assert_eq!(fixture.brokers.payloads_of("a"), ["0"]);
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    for sql in [
        "SELECT * FROM campanile.outbox",
        "DELETE FROM campanile.outbox",
        "INSERT INTO campanile.outbox (millis, topic, header_names, header_values) VALUES (0, 't', '{}', '{}')",
    ] {
        let error = client.batch_execute(sql).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "42501", "{sql}: {error}");
    }
}
