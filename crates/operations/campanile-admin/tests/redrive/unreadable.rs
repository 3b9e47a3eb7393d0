//! Letters that are damaged on the broker's disk, or compressed by a codec that is not built in.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use campanile_admin::AdminError;
use campanile_admin::explain::{Explain, KeySource};
use campanile_admin::observe::Observe;
use campanile_admin::redrive::Redrive;
use rdkafka::ClientConfig;

use crate::run;
use crate::servers::text;
use crate::support::{KAFKA, NAMESPACE, Scene};

/// Without an answer in this time, the error is another one.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Fails three keys, each with a letter in a batch of its own, and damages the second letter.
async fn damaged(topic: &str) -> Scene {
    let scene = Scene::new(topic, 1).await;
    for letter in scene.failed_letters(3).await {
        KAFKA.producer().produce(letter).unwrap();
    }
    let segment = KAFKA.segment(&scene.dead, 0);
    let bytes = fs::read(&segment).unwrap();
    let key = b"account of p-1";
    let at = bytes.windows(key.len()).position(|it| it == key).unwrap();
    let file = fs::OpenOptions::new().write(true).open(segment).unwrap();
    file.write_all_at(b"A", at as u64).unwrap();
    scene
}

fn assert_damage(error: &AdminError) {
    let text = text(error);
    for part in ["at offset 1", "CRC32C", "run again to find out"] {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_letter_ends_the_run_and_is_not_produced() {
    let scene = damaged("damaged").await;
    let redrive = Redrive::new("damaged.dead").with_timeout(TIMEOUT);
    let preview = redrive.preview(&scene.kafka(), &scene.store).await.unwrap_err();
    assert_damage(&preview);
    let error = run(&scene, &redrive).await.err().unwrap();
    assert_damage(&error);
    assert!(text(&error).contains("cannot read the letter at damaged.dead/0@1"), "{error:?}");
    assert_eq!(scene.produced(), ["p-0"]);
    // The check cannot be disabled, and the next run begins at the letter.
    let mut unchecked = scene.kafka();
    unchecked.set("check.crcs", "false");
    let again = redrive.run(&unchecked, &scene.store, &mut (), std::future::pending::<()>()).await;
    assert_damage(&again.unwrap_err());
    assert_eq!(scene.produced(), ["p-0"]);

    scene.commit(&redrive.group(), 2);
    let (summary, _) = run(&scene, &redrive).await.unwrap();
    assert_eq!((summary.reopened, scene.produced()), (1, vec!["p-0".into(), "p-2".into()]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_record_is_neither_explained_nor_observed() {
    let scene = damaged("damaged-read").await;
    let key = KeySource::Header("campanile-key".into());
    let explain = |offset: i64| {
        let record = format!("damaged-read.dead/0@{offset}").parse().unwrap();
        Explain::new(record, NAMESPACE.try_into().unwrap()).with_timeout(TIMEOUT)
    };
    explain(0).run(&scene.kafka(), &scene.store, &key).await.unwrap();
    let error = explain(1).run(&scene.kafka(), &scene.store, &key).await.unwrap_err();
    assert_damage(&error);

    scene.commit("observed", 3);
    let observe = Observe::new("damaged-read.dead", "observed", NAMESPACE.try_into().unwrap());
    let observe = observe.with_timeout(TIMEOUT);
    let mut kafka = scene.kafka();
    let error = observe.run(&kafka, &scene.store, &key, |_| Ok(())).await.unwrap_err();
    assert_damage(&error);
    // Nothing is written, so the damaged record may be looked at.
    kafka.set("check.crcs", "false");
    let report = observe.run(&kafka, &scene.store, &key, |_| Ok(())).await.unwrap();
    assert_eq!(report.records, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letter_of_a_missing_codec_names_the_feature() {
    let scene = Scene::new("codec", 1).await;
    KAFKA.create_topic("codec.zstd", 1, &[("compression.type", "zstd")]).unwrap();
    let scene = Scene { dead: "codec.zstd".to_owned(), ..scene };
    let letters = scene.failed_letters(30).await;
    KAFKA.producer().produce_all(letters).unwrap();
    let redrive = Redrive::new("codec.zstd").with_timeout(TIMEOUT);
    let features = ClientConfig::new().create_native_config().unwrap().get("builtin.features");
    let result = run(&scene, &redrive).await;
    if features.unwrap().contains("zstd") {
        assert_eq!(result.unwrap().0.reopened, 30);
    } else {
        let text = text(&result.err().unwrap());
        assert!(text.contains("the feature `zstd`"), "{text}");
        assert!(scene.produced().is_empty());
    }
}
