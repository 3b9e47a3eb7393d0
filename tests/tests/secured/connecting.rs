//! Users that log in, and those that cannot.

use std::time::Duration;

use campanile_test::Authority;
use tokio::time::Instant;

use crate::scene::{Running, Scene};
use crate::{PASSWORD, SERVER};

/// The start timeout of a consumer that cannot connect: enough to be refused on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(6);

async fn consumes_with(user: &'static str, mechanism: &str) {
    let scene = Scene::new(user);
    scene.allow(&["consumer", "retry topics", "dead letters"]);
    scene.produce(&["paid", "retry", "dead"]);
    let mut client = scene.client();
    client.set("sasl.mechanism", mechanism);
    scene.serve_all(client).await;
    assert_eq!(scene.count(&scene.dead), 1);
    let runs = [("dead", 1), ("paid", 1), ("retry", 2)];
    assert_eq!(scene.runs(), runs.map(|(id, runs)| (id.to_owned(), runs)).into());
    assert_eq!(SERVER.events.count(&[PASSWORD]), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scram_over_tls_consumes() {
    consumes_with("scram", "SCRAM-SHA-512").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_over_tls_consumes() {
    consumes_with("plain", "PLAIN").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_password_or_authority_is_named_and_loses_nothing() {
    let scene = Scene::new("stranger");
    scene.allow(&["consumer", "retry topics", "dead letters"]);
    scene.produce(&["paid"]);
    let other = Authority::new().unwrap();
    let other = other.path("ca.crt").display().to_string();
    let start = Instant::now();
    let refused = [
        ("SCRAM-SHA-512", "sasl.password", "0ther", "`sasl.password`"),
        ("PLAIN", "sasl.password", "0ther", "`sasl.password`"),
        ("PLAIN", "ssl.ca.location", &*other, "`ssl.ca.location`"),
    ]
    .map(|(mechanism, setting, wrong, advice)| {
        let mut client = scene.client();
        client.set("sasl.mechanism", mechanism).set(setting, wrong);
        let serving = Running::start(scene.serve(client, START_TIMEOUT));
        let ended = async move { (serving.ended().await, start.elapsed()) };
        (tokio::spawn(ended), advice)
    });
    for (ended, advice) in refused {
        let (result, after) = ended.await.unwrap();
        let error = format!("{:?}", result.unwrap_err());
        assert!(error.contains("no broker") && error.contains(advice), "{error}");
        assert!(!error.contains("0ther") && !error.contains(PASSWORD), "{error}");
        assert!(after >= START_TIMEOUT, "{after:?}: {error}");
    }
    assert_ne!(SERVER.events.count(&["no broker answered"]), 0, "nothing was captured");
    for password in ["0ther", PASSWORD] {
        assert_eq!(SERVER.events.count(&[password]), 0, "{password}");
    }
    scene.serve_all(scene.client()).await;
    assert_eq!(scene.runs(), [("paid".to_owned(), 1)].into());
}
