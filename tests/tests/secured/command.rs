//! The verbs of the command, with exactly the rights that the guide lists.

use std::future::pending;
use std::time::Duration;

use campanile::IdempotencyConfig;
use campanile_admin::explain::{Cause, Explain, KeySource};
use campanile_admin::observe::Observe;
use campanile_admin::redrive::Redrive;
use campanile_admin::{AdminError, StoreConfig, doctor};
use campanile_test::RedisServer;

use crate::rights::Right;
use crate::scene::Scene;

/// Asserts that the call fails without each of these rights, and returns its result with all.
async fn check<T>(
    rights: &[Right],
    call: impl AsyncFn() -> Result<T, AdminError>,
) -> Result<T, AdminError> {
    for right in rights {
        right.forbid();
        let error = call().await.err().unwrap_or_else(|| panic!("not necessary: {right:?}"));
        right.assert_is_named(&format!("{error:?}"));
        right.allow();
    }
    call().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_right_of_explain_is_necessary_and_named() {
    let scene = Scene::new("explain");
    scene.produce(&["paid"]);
    scene.serve_all(scene.unlimited_client()).await;
    let rights = scene.allow(&["`explain`"]);
    let at = format!("{}/0@0", scene.topic).parse().unwrap();
    let explain = Explain::new(at, scene.group.as_str().try_into().unwrap());
    let explain = explain.with_group(scene.group.as_str());
    let key = KeySource::JsonPointer("/id".into());
    let client = scene.client();
    let explained = check(&rights, async || explain.run(&client, &scene.store, &key).await).await;
    assert_eq!(explained.unwrap().cause, Cause::CompletedByAny);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_right_of_observe_is_necessary_and_named() {
    let scene = Scene::new("observe");
    scene.produce(&["paid"]);
    scene.serve_all(scene.unlimited_client()).await;
    let rights = scene.allow(&["`observe`"]);
    let namespace = scene.group.as_str().try_into().unwrap();
    let observe = Observe::new(scene.topic.as_str(), scene.group.as_str(), namespace);
    let key = KeySource::JsonPointer("/id".into());
    let client = scene.client();
    let run = async || observe.run(&client, &scene.store, &key, |_| Ok(())).await;
    let report = check(&rights, run).await.unwrap();
    assert_eq!((report.records, report.completed), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_right_of_redrive_is_necessary_and_named() {
    let scene = Scene::new("redrive");
    scene.produce(&["dead"]);
    scene.serve_all(scene.unlimited_client()).await;
    assert_eq!(scene.count(&scene.dead), 1);
    let rights = scene.allow(&["`redrive`"]);
    let mut client = scene.client();
    client.remove("group.id");
    let redrive = Redrive::new(scene.dead.as_str());
    let preview = async || redrive.preview(&client, &scene.store).await;
    assert_eq!(check(&rights, preview).await.unwrap().reopened, 1);
    let run = async || redrive.run(&client, &scene.store, &mut (), pending::<()>()).await;
    let summary = check(&rights, run).await.unwrap();
    assert_eq!((summary.reopened, scene.count(&scene.topic)), (1, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_right_of_doctor_is_necessary_and_named() {
    let scene = Scene::new("doctor");
    // The brokers have created the topic of the offsets.
    scene.produce(&["paid"]);
    scene.serve_all(scene.unlimited_client()).await;
    let consumer = scene.allow(&["consumer", "retry topics", "dead letters"]);
    let rights = scene.allow(&["`doctor`"]);
    let redis = RedisServer::start().unwrap();
    let store: StoreConfig = redis.url().parse().unwrap();
    let layer = IdempotencyConfig::new(scene.group.as_str());
    let deployment = doctor::Deployment::new(scene.client(), layer, store)
        .subscribe([&scene.topic])
        .with_retry_topic(&scene.retry, Duration::from_millis(10))
        .with_dead_letter_topic(&scene.dead);
    let missing = async || {
        let report = doctor::examine(&deployment).await;
        let unchecked = report.unchecked.into_iter().map(|it| format!("{}: {}", it.what, it.why));
        let findings =
            report.findings.into_iter().map(|it| format!("{}: {}", it.subject, it.remedy));
        let lines = unchecked.chain(findings);
        lines.filter(|line| line.contains("allow the user")).collect::<Vec<_>>()
    };
    // The report does not know whether the consumer may write.
    let [group, topic, ..] = &consumer[..] else { panic!("{consumer:?}") };
    for right in rights.iter().chain([group, topic]) {
        right.forbid();
        right.assert_is_named(&missing().await.join("\n"));
        right.allow();
    }
    assert_eq!(missing().await, Vec::<String>::new());
}
