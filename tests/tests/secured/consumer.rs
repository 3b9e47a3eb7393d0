//! A consumer that has exactly the rights that the guide lists.

use campanile::prelude::*;
use campanile::{Consumer, Output, Outputs, Transactions};

use crate::rights::for_purposes;
use crate::scene::{Running, Scene};
use crate::{SERVER, TIMEOUT, group};

const PURPOSES: &[&str] = &["consumer", "retry topics", "dead letters"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_right_of_a_consumer_is_necessary_and_named() {
    let scene = Scene::new("consumer");
    let rights = scene.allow(PURPOSES);
    for (round, right) in rights.iter().enumerate() {
        let ids = ["paid", "retry", "dead"].map(|id| format!("{id}-{round}"));
        scene.produce(&ids.each_ref().map(|id| &**id));
        right.forbid();
        let words: Vec<_> = right.words.iter().map(String::as_str).collect();
        let earlier = SERVER.events.count(&words);
        scene.start(scene.client()).complains(&words, earlier).await;
        right.allow();
    }
    scene.serve_all(scene.client()).await;
    assert_eq!(scene.count(&scene.dead), i64::try_from(rights.len()).unwrap());
    for (id, runs) in scene.runs() {
        // If its copy could not be published, the record was retried in place.
        assert_eq!(runs, if id.starts_with("retry") { 2 } else { 1 }, "{id}");
    }
    assert_eq!(scene.runs().len(), 3 * rights.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn right_revoked_while_serving_loses_nothing() {
    let scene = Scene::new("revoked");
    scene.allow(PURPOSES);
    scene.produce(&["paid"]);
    let running = scene.start(scene.client());
    scene.all_committed().await;
    let revoked = for_purposes("revoked", &["dead letters"]);
    revoked[0].forbid();
    scene.produce(&["dead", "paid-later"]);
    let words = ["failed to publish the dead letter", &*scene.dead, "allow"];
    let wait = async {
        while SERVER.events.count(&words) == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, wait).await.expect("an event about the dead letter");
    assert_eq!(scene.count(&scene.dead), 0);
    revoked[0].allow();
    scene.all_committed().await;
    running.stop().await.unwrap();
    assert_eq!(scene.count(&scene.dead), 1);
    assert!(scene.runs().values().all(|&runs| runs == 1), "{:?}", scene.runs());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_right_of_transactions_is_necessary_and_named() {
    let scene = Scene::new("transactions");
    let invoices = scene.name("invoices");
    SERVER.kafka.create_topic(&invoices, 1, &[]).unwrap();
    let rights = scene.allow(&["consumer", "Transactions"]);
    scene.produce(&["paid", "paid-too"]);
    let start = || {
        let invoices = invoices.clone();
        let service = tower::service_fn(move |record: Record| {
            let outputs = Outputs::of(&record).with(Output::to(invoices.clone()).payload("100"));
            async move { Ok::<_, BoxError>(outputs) }
        });
        let consumer = Consumer::new(scene.client()).unwrap().subscribe([&scene.topic]);
        let transactions = Transactions::new(scene.name("billing-0"));
        Running::start(consumer.serve_transactional(service, transactions))
    };
    for right in &rights {
        right.forbid();
        let error = start().ended().await.unwrap_err();
        right.assert_is_named(&format!("{error:?}"));
        right.allow();
    }
    let running = start();
    let (client, topic) = (scene.unlimited_client(), scene.topic.clone());
    let wait = move || group::wait_until_committed(&client, &topic, 1, TIMEOUT);
    tokio::task::spawn_blocking(wait).await.unwrap();
    running.stop().await.unwrap();
}
