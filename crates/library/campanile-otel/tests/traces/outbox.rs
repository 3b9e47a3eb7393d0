//! Messages of the outbox.

use campanile_core::{BoxError, Output};
use campanile_postgres::{Inbox, PgStore, Transaction, migrate};
use campanile_test::PgServer;
use tracing::Instrument;

use crate::support::{Traces, parent};

#[tokio::test(flavor = "current_thread")]
async fn outbox_message_carries_the_span_of_its_handler() {
    let server = PgServer::start().unwrap();
    migrate(server.url()).await.unwrap();
    let store = PgStore::connect(server.url()).await.unwrap();
    let inbox = Inbox::new(&store).unwrap();
    let (sender, mut published) = tokio::sync::mpsc::unbounded_channel();
    let publisher = tower::service_fn(move |message: Output| {
        sender.send(message).unwrap();
        async { Ok::<_, BoxError>(()) }
    });
    let relay = tokio::spawn(inbox.relay(publisher, std::future::pending()));

    let traces = Traces::start();
    let bills = async |tx: Transaction| tx.publish(Output::to("bills")).await;
    let runner = inbox.runner("bills").unwrap();
    runner.run("b-1", bills).instrument(tracing::info_span!("request")).await.unwrap();
    let message = published.recv().await.unwrap();
    relay.abort();

    let [request] = traces.until("request").await;
    let handler = traces.child("process", &request);
    let traceparents = message.headers.iter().filter(|(name, _)| name == "traceparent");
    let [(_, Some(value))] = traceparents.collect::<Vec<_>>()[..] else { panic!() };
    let (trace_id, _) = parent(&handler);
    let span_id = handler.span_context.span_id();
    assert_eq!(value, format!("00-{trace_id}-{span_id}-01").as_bytes());
}
