//! What the progress of a run belongs to.

use campanile_admin::redrive::Redrive;
use campanile_redis::RedisStore;
use campanile_test::RedisServer;

use crate::run;
use crate::support::{KAFKA, Scene};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_store_of_a_shared_topic_has_its_own_progress() {
    let billing = Scene::new("two-stores", 1).await;
    let redis = RedisServer::start().unwrap();
    let store = RedisStore::connect(redis.url()).await.unwrap();
    let Scene { topic, dead, partitions, .. } = &billing;
    let (topic, dead, partitions) = (topic.clone(), dead.clone(), *partitions);
    let shipping = Scene { topic, dead, partitions, redis, store };
    let letters = [("b-1", &billing), ("s-1", &shipping)];
    for (key, scene) in letters {
        KAFKA.producer().produce(scene.letter(key, scene.fail(key).await)).unwrap();
    }
    let redrive = Redrive::new(billing.dead.as_str());
    for (name, scene) in [("billing", &billing), ("shipping", &shipping)] {
        let redrive = redrive.clone().with_store_name(name);
        let preview = redrive.preview(&scene.kafka(), &scene.store).await.unwrap();
        assert_eq!((preview.reopened, preview.handled_before), (1, 0), "{name}");
        let (summary, _) = run(scene, &redrive).await.unwrap();
        let handled = (summary.reopened, summary.parked, summary.handled_before);
        assert_eq!(handled, (1, 1, 0), "{name}");
    }
    assert_eq!(billing.produced(), ["b-1", "s-1"]);

    // A group that is shared all the same says that its letters were handled.
    let shared = redrive.with_group("two-stores.shared");
    run(&billing, &shared).await.unwrap();
    let (summary, audit) = run(&shipping, &shared).await.unwrap();
    assert_eq!((summary.handled_before, audit.0.len()), (2, 0));
    let preview = shared.preview(&shipping.kafka(), &shipping.store).await.unwrap();
    assert_eq!(preview.handled_before, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offset_beyond_the_end_passes_no_letter_over() {
    let scene = Scene::new("beyond", 1).await;
    KAFKA.producer().produce_all(scene.failed_letters(3).await).unwrap();
    let redrive = Redrive::new(scene.dead.as_str());
    // As of a topic with the same name, which is deleted.
    scene.commit(&redrive.group(), 10);
    let preview = redrive.preview(&scene.kafka(), &scene.store).await.unwrap();
    assert_eq!((preview.reopened, preview.handled_before), (3, 0));
    let (summary, _) = run(&scene, &redrive).await.unwrap();
    assert_eq!((summary.reopened, summary.handled_before), (3, 0));
    let (again, audit) = run(&scene, &redrive).await.unwrap();
    assert_eq!((again.handled_before, audit.0.len()), (3, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_in_an_earlier_topic_passes_no_letter_over() {
    let scene = Scene::new("earlier", 1).await;
    KAFKA.producer().produce_all(scene.failed_letters(3).await).unwrap();
    let redrive = Redrive::new(scene.dead.as_str());
    // As of a topic with the same name, which was deleted.
    scene.commit_with(&redrive.group(), 2, "topic-id=AAAAAAAAAAAAAAAAAAAAAQ");
    let preview = redrive.preview(&scene.kafka(), &scene.store).await.unwrap();
    assert_eq!((preview.reopened, preview.handled_before), (3, 0));
    let (summary, _) = run(&scene, &redrive).await.unwrap();
    assert_eq!((summary.reopened, summary.handled_before), (3, 0));
    let (again, audit) = run(&scene, &redrive).await.unwrap();
    assert_eq!((again.handled_before, audit.0.len()), (3, 0));
}
