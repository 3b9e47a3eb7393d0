//! Stored replies: how large they may be, and how they are encrypted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use campanile_core::{
    BoxError, Disposition, IdempotencyKey, Namespace, Outcome, Request, State, classify,
};
use campanile_idempotency::policy::{OnExhausted, OnLargeReply};
use campanile_idempotency::reply::ReplyCipher;
use campanile_idempotency::{IdempotencyError, ReplyTooLarge, reply};
use tower::{Layer, service_fn};

use crate::harness::{Harness, TestLayer, TestService, failed, layer_error, run_until_idle};

const RECEIPT: &[u8] = b"receipt";

fn receipt_service(layer: TestLayer) -> impl TestService<Bytes> + use<> {
    let layer = layer.with_reply(reply::bytes());
    layer.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(Bytes::from_static(RECEIPT))))
}

#[tokio::test(start_paused = true)]
async fn too_large_reply_fails_attempt_permanently_by_policy() {
    let harness = Harness::new();
    for limit in [RECEIPT.len(), RECEIPT.len() - 1] {
        let id = format!("p-{limit}");
        let layer = harness.layer_with(|config| config.with_max_reply_bytes(limit));
        let layer = layer.on_large_reply(OnLargeReply::Fail);
        let result = receipt_service(layer.clone()).run(&id).await;
        if limit == RECEIPT.len() {
            assert!(result.is_ok());
            continue;
        }
        let failed = failed(&result);
        assert_eq!(failed.disposition, Disposition::DeadLetter);
        let error = failed.source.downcast_ref::<ReplyTooLarge>().unwrap();
        assert_eq!((error.size, error.limit), (7, 6));
        drop(result);
        run_until_idle().await;
        let again = receipt_service(layer.clone()).run(&id).await;
        assert!(matches!(layer_error(&again), IdempotencyError::BackingOff { .. }), "{again:?}");
        let text = "the reply of 7 bytes exceeds the limit of 6; raise `IdempotencyConfig::with_max_reply_bytes`";
        assert_eq!(harness.entry(&id).unwrap().error().unwrap(), text);
    }
}

#[tokio::test(start_paused = true)]
async fn too_large_reply_can_be_classified() {
    let harness = Harness::new();
    let layer = harness
        .layer_with(|config| config.with_max_reply_bytes(1))
        .on_large_reply(OnLargeReply::Fail)
        .on_exhausted(OnExhausted::GiveUp)
        .with_classifier(classify::on(|_: &ReplyTooLarge| Disposition::Skip));
    let outcome = receipt_service(layer).run("p-1").await.unwrap();
    assert!(matches!(outcome, Outcome::GivenUp(_)), "{outcome:?}");
    assert_eq!(harness.state("p-1"), Some(State::Failed));
}

/// Not a real cipher, but the sealed bytes show the namespace and key of the reply.
struct TestCipher {
    fails: bool,
    opened: Arc<AtomicUsize>,
}

fn seal(namespace: &Namespace, key: &IdempotencyKey) -> Vec<u8> {
    [namespace.as_str().as_bytes(), b"/", key.as_bytes(), b":"].concat()
}

impl ReplyCipher for TestCipher {
    fn seal(
        &self,
        namespace: &Namespace,
        key: &IdempotencyKey,
        reply: Bytes,
    ) -> Result<Bytes, BoxError> {
        if self.fails {
            return Err("no entropy".into());
        }
        let inverted = reply.iter().map(|byte| !byte);
        Ok(seal(namespace, key).into_iter().chain(inverted).collect())
    }

    fn open(
        &self,
        namespace: &Namespace,
        key: &IdempotencyKey,
        sealed: Bytes,
    ) -> Result<Bytes, BoxError> {
        let inverted =
            sealed.strip_prefix(&seal(namespace, key)[..]).ok_or("sealed for another")?;
        self.opened.fetch_add(1, Ordering::Relaxed);
        Ok(inverted.iter().map(|byte| !byte).collect())
    }
}

#[tokio::test(start_paused = true)]
async fn reply_is_stored_encrypted_and_decrypted_for_duplicates() {
    let harness = Harness::new();
    let opened = Arc::new(AtomicUsize::new(0));
    let cipher = TestCipher { fails: false, opened: opened.clone() };
    let service = receipt_service(harness.layer().with_reply_encryption(cipher));
    service.run("p-1").await.unwrap();
    let kept = harness.entry("p-1").unwrap().reply().unwrap().clone();
    assert!(kept.starts_with(b"payments/p-1:"), "{kept:?}");
    assert!(!kept.windows(RECEIPT.len()).any(|part| part == RECEIPT), "{kept:?}");
    let again = service.run("p-1").await.unwrap();
    assert!(again.is_duplicate());
    assert_eq!(again.into_reply().unwrap(), RECEIPT);
    assert_eq!(opened.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn reply_that_cannot_be_encrypted_is_not_kept() {
    let harness = Harness::new();
    let cipher = TestCipher { fails: true, opened: Arc::default() };
    let service = receipt_service(harness.layer().with_reply_encryption(cipher));
    assert!(matches!(service.run("p-1").await.unwrap(), Outcome::Processed(_)));
    assert_eq!(harness.entry("p-1").unwrap().reply(), None);
    assert_eq!(harness.state("p-1"), Some(State::Completed));
}

#[tokio::test(start_paused = true)]
async fn undecryptable_reply_leaves_duplicate_without_reply() {
    let harness = Harness::new();
    // Stored unencrypted, before encryption was enabled.
    receipt_service(harness.layer()).run("p-1").await.unwrap();
    let opened = Arc::new(AtomicUsize::new(0));
    let cipher = TestCipher { fails: false, opened: opened.clone() };
    let again =
        receipt_service(harness.layer().with_reply_encryption(cipher)).run("p-1").await.unwrap();
    assert!(again.is_duplicate());
    assert_eq!(again.into_reply(), None);
    assert_eq!(opened.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn reply_size_limit_applies_to_encrypted_size() {
    let harness = Harness::new();
    let cipher = TestCipher { fails: false, opened: Arc::default() };
    let layer = harness
        .layer_with(|config| config.with_max_reply_bytes(RECEIPT.len()))
        .with_reply_encryption(cipher);
    receipt_service(layer).run("p-1").await.unwrap();
    assert_eq!(harness.entry("p-1").unwrap().reply(), None);
}
