//! What is kept of replies: how large they may be, and who can read them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use campanile_core::{
    BoxError, Disposition, IdempotencyKey, Namespace, Outcome, Request, State, classify,
};
use campanile_idempotency::policy::{OnGivenUp, OnLargeReply};
use campanile_idempotency::reply::ReplyCipher;
use campanile_idempotency::{IdempotencyError, ReplyTooLarge, reply};
use tower::{Layer, service_fn};

use crate::world::{Guarding, TestLayer, World, failed, refusal, settle_down};

const RECEIPT: &[u8] = b"receipt";

fn receipts(layer: TestLayer) -> impl Guarding<Bytes> + use<> {
    let layer = layer.with_reply(reply::bytes());
    layer.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(Bytes::from_static(RECEIPT))))
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_too_large_fails_the_attempt_for_good_if_that_is_chosen() {
    let world = World::new();
    let layer = world.layer().with_large_reply(OnLargeReply::Fail);
    for most in [RECEIPT.len(), RECEIPT.len() - 1] {
        let id = format!("p-{most}");
        let called = receipts(layer.clone().with_max_reply_bytes(most)).run(&id).await;
        if most == RECEIPT.len() {
            assert!(called.is_ok());
            continue;
        }
        let failed = failed(&called);
        assert_eq!(failed.disposition, Disposition::DeadLetter);
        let error = failed.source.downcast_ref::<ReplyTooLarge>().unwrap();
        assert_eq!((error.size, error.most), (7, 6));
        drop(called);
        settle_down().await;
        let again = receipts(layer.clone()).run(&id).await;
        assert!(matches!(refusal(&again), IdempotencyError::BackingOff { .. }), "{again:?}");
        let text = "the reply of 7 bytes exceeds the limit of 6; raise `IdempotencyLayer::with_max_reply_bytes`";
        assert_eq!(world.entry(&id).unwrap().error().unwrap(), text);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_reply_that_is_too_large_means_can_be_classified() {
    let world = World::new();
    let layer = world
        .layer()
        .with_large_reply(OnLargeReply::Fail)
        .with_max_reply_bytes(1)
        .with_given_up(OnGivenUp::Reject)
        .with_classifier(classify::on(|_: &ReplyTooLarge| Disposition::Skip));
    let outcome = receipts(layer).run("p-1").await.unwrap();
    assert!(matches!(outcome, Outcome::Parked(_)), "{outcome:?}");
    assert_eq!(world.state("p-1"), Some(State::Failed));
}

/// No cipher, but it shows what is sealed for whom.
struct Sealed {
    fails: bool,
    opened: Arc<AtomicUsize>,
}

fn seal(namespace: &Namespace, key: &IdempotencyKey) -> Vec<u8> {
    [namespace.as_str().as_bytes(), b"/", key.as_bytes(), b":"].concat()
}

impl ReplyCipher for Sealed {
    fn seal(
        &self,
        namespace: &Namespace,
        key: &IdempotencyKey,
        reply: Bytes,
    ) -> Result<Bytes, BoxError> {
        if self.fails {
            return Err("no entropy".into());
        }
        let turned = reply.iter().map(|byte| !byte);
        Ok(seal(namespace, key).into_iter().chain(turned).collect())
    }

    fn open(
        &self,
        namespace: &Namespace,
        key: &IdempotencyKey,
        sealed: Bytes,
    ) -> Result<Bytes, BoxError> {
        let turned = sealed.strip_prefix(&seal(namespace, key)[..]).ok_or("sealed for another")?;
        self.opened.fetch_add(1, Ordering::Relaxed);
        Ok(turned.iter().map(|byte| !byte).collect())
    }
}

#[tokio::test(start_paused = true)]
async fn replies_are_kept_encrypted_for_their_key_and_duplicates_get_them_in_the_clear() {
    let world = World::new();
    let opened = Arc::new(AtomicUsize::new(0));
    let cipher = Sealed { fails: false, opened: opened.clone() };
    let service = receipts(world.layer().with_reply_encryption(cipher));
    service.run("p-1").await.unwrap();
    let kept = world.entry("p-1").unwrap().reply().unwrap().clone();
    assert!(kept.starts_with(b"payments/p-1:"), "{kept:?}");
    assert!(!kept.windows(RECEIPT.len()).any(|part| part == RECEIPT), "{kept:?}");
    let again = service.run("p-1").await.unwrap();
    assert!(again.is_duplicate());
    assert_eq!(again.into_reply().unwrap(), RECEIPT);
    assert_eq!(opened.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_cannot_be_encrypted_is_not_kept_at_all() {
    let world = World::new();
    let cipher = Sealed { fails: true, opened: Arc::default() };
    let service = receipts(world.layer().with_reply_encryption(cipher));
    assert!(matches!(service.run("p-1").await.unwrap(), Outcome::Processed(_)));
    assert_eq!(world.entry("p-1").unwrap().reply(), None);
    assert_eq!(world.state("p-1"), Some(State::Completed));
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_cannot_be_decrypted_leaves_a_duplicate_without_one() {
    let world = World::new();
    // Kept in the clear, before encryption was chosen.
    receipts(world.layer()).run("p-1").await.unwrap();
    let opened = Arc::new(AtomicUsize::new(0));
    let cipher = Sealed { fails: false, opened: opened.clone() };
    let again = receipts(world.layer().with_reply_encryption(cipher)).run("p-1").await.unwrap();
    assert!(again.is_duplicate());
    assert_eq!(again.into_reply(), None);
    assert_eq!(opened.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn the_size_that_counts_is_that_of_what_is_kept() {
    let world = World::new();
    let cipher = Sealed { fails: false, opened: Arc::default() };
    let layer = world.layer().with_reply_encryption(cipher).with_max_reply_bytes(RECEIPT.len());
    receipts(layer).run("p-1").await.unwrap();
    assert_eq!(world.entry("p-1").unwrap().reply(), None);
}
