//! The documented permissions suffice for the outbox, and grant no access to its table.

use campanile_postgres::{Inbox, PgStore};

use crate::support::patient;
use crate::world::{World, bill};

#[tokio::test]
async fn handlers_publish_and_a_relay_works_under_the_permissions_that_are_documented() {
    let world = World::new().await;
    world.database.psql(
        "CREATE ROLE app_with_an_outbox LOGIN; \
         GRANT USAGE ON SCHEMA campanile TO app_with_an_outbox; \
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA campanile TO app_with_an_outbox",
    );
    let url = world.database.url().replace("//postgres@", "//app_with_an_outbox@");
    let inbox = Inbox::new(&PgStore::connect(patient(&url)).await.unwrap()).unwrap();
    let world = World { inbox, ..world };
    world.publish("b-1", [bill("a", 0)]).await;
    let relay = world.relay();
    world.wait_until_empty().await;
    relay.stop().await;
    assert_eq!(world.brokers.of("a"), ["0"]);
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
