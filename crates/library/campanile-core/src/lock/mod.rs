//! The handle to a held lock.

mod control;
mod lost;
mod step;
mod step_error;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use self::step::LockSteps;
use crate::clock::Clock;
use crate::key::{self, DerivationSecret};
use crate::wakers::Wakers;
use crate::{
    ConfigError, FencingToken, Grant, IdempotencyKey, LockLost, LostCause, Namespace, StoreKey,
};

pub use self::control::LockControl;
pub use self::lost::LostFuture;
pub use self::step::{RecordSteps, Recording};
pub use self::step_error::StepError;

/// The lock under which a request is processed, as its handler sees it. Cheap to clone.
///
/// A lock does not guarantee mutual exclusion in an asynchronous network: a pause between
/// [`check`](Self::check) and the effect can outlast the lock. Only a receiver that compares the
/// [`token`](Self::token), or that deduplicates by a [derived key](Self::derive), can then refuse the
/// effect.
#[derive(Clone)]
pub struct LockHandle(Arc<Inner>);

struct Inner {
    store_key: StoreKey,
    key: IdempotencyKey,
    derivation_secret: Option<DerivationSecret>,
    grant: Grant,
    attempt: u32,
    clock: Clock,
    /// In nanoseconds of `clock`.
    deadline: AtomicU64,
    /// Zero while the lock is held, else the code of a [`LostCause`].
    loss: AtomicU8,
    /// Whether anything has started that is not rolled back with the lock: the handler, or a step of it.
    is_effect_possible: AtomicBool,
    wakers: Wakers,
    /// Boxed, because it is rarely set.
    completion: OnceLock<Box<Completion>>,
    steps: LockSteps,
}

/// How an entry was completed together with the handler's effect, without the keeper.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The reply to later duplicates.
    pub reply: Option<Bytes>,
    /// When the entry was completed, by the store's clock.
    pub at: SystemTime,
}

impl LockHandle {
    /// Returns the key of the lock.
    pub fn key(&self) -> &IdempotencyKey {
        &self.0.key
    }

    /// Returns the namespace of the key.
    pub fn namespace(&self) -> &Namespace {
        self.0.store_key.namespace()
    }

    /// Derives the idempotency key of a call that the handler makes: the `Idempotency-Key` of an HTTP
    /// request, or the [header](key::HEADER) of a message in another topic.
    ///
    /// The key is the same in each attempt of the event, in every process and release, and after a
    /// redrive. It differs between names, namespaces and secrets. A receiver that deduplicates by it
    /// therefore acts once, although the handler may run again after a crash. Use one name for each
    /// call that the handler makes for an event, such as `charge`, or `line-7` for the parts of an
    /// order.
    ///
    /// The key is the text of a UUID of version 8: 36 characters of `[0-9a-f-]`, of which 122 bits are
    /// a BLAKE3 hash. Among 2^40 keys, the probability that any two are equal is below 2^-42.
    ///
    /// ```
    /// use campanile_core::{BoxError, Request};
    ///
    /// # async fn post(_key: &str) -> Result<(), BoxError> { Ok(()) }
    /// async fn charge(request: Request<String>) -> Result<(), BoxError> {
    ///     let lock = request.lock()?;
    ///     let key = lock.derive("charge")?;
    ///     lock.check()?;
    ///     post(&key).await
    /// }
    /// ```
    ///
    /// # Without a secret
    /// If the layer has no [`DerivationSecret`], the key is a plain hash: it can be computed from the
    /// event's key, the namespace and the name. That suffices if the receiver separates its clients by
    /// their credentials, as payment providers do. Set a secret if another client of the receiver could
    /// send the key first, or if the receiver must not find out an event's key by trying the possible
    /// ones.
    ///
    /// # Errors
    /// Fails if the name is empty or has more than 255 bytes.
    pub fn derive(&self, name: &str) -> Result<String, ConfigError> {
        key::derive(self.0.derivation_secret.as_ref(), self.namespace(), self.key(), name)
    }

    /// Returns the fencing token, which increases with each grant of this key.
    pub fn token(&self) -> FencingToken {
        self.0.grant.token
    }

    /// Returns the number of this attempt, starting at 1.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// Computes how long the lock holds without a further confirmed renewal, or zero once it is
    /// lost.
    ///
    /// The deadline is computed from the instant *before* the last confirmed command was sent,
    /// minus a margin, so that the lock expires here before it expires in the store.
    pub fn remaining(&self) -> Duration {
        match self.loss() {
            Some(_) => Duration::ZERO,
            None => self.deadline().saturating_sub(self.0.clock.now()),
        }
    }

    /// Checks that the lock is still held. Call this right before a side effect.
    ///
    /// # Errors
    /// Fails with [`LockLost`] once the lock is lost, also after the end of the attempt for which
    /// it was granted. A lost lock never becomes valid again.
    pub fn check(&self) -> Result<(), LockLost> {
        self.loss().map_or(Ok(()), Err)
    }

    /// Creates a future that resolves when the lock is lost, for `select!` in a long-running
    /// handler.
    pub fn lost(&self) -> LostFuture {
        LostFuture::new(self.clone())
    }

    /// Returns the key under which the store keeps the entry.
    pub fn store_key(&self) -> &StoreKey {
        &self.0.store_key
    }

    /// Returns the grant of the lock, with which commands to a store name it.
    pub fn grant(&self) -> Grant {
        self.0.grant
    }

    /// Finds out how the lock was lost, and wakes the waiters if it has just expired.
    ///
    /// Compares the deadline with the clock itself, because the keeper may not have noticed the
    /// expiration yet.
    fn loss(&self) -> Option<LockLost> {
        if self.0.loss.load(Ordering::Acquire) == HELD && self.0.clock.now() >= self.deadline() {
            self.lose(LostCause::Expired);
        }
        decode_cause(self.0.loss.load(Ordering::Acquire)).map(|cause| LockLost {
            key: self.key().clone(),
            token: self.0.grant.token,
            cause,
        })
    }

    fn lose(&self, cause: LostCause) {
        let code = encode_cause(cause);
        if self.0.loss.compare_exchange(HELD, code, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.0.wakers.wake_all();
        }
    }

    fn deadline(&self) -> Duration {
        Duration::from_nanos(self.0.deadline.load(Ordering::Acquire))
    }
}

impl fmt::Debug for LockHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockHandle")
            .field("token", &self.token().get())
            .field("attempt", &self.attempt())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

const HELD: u8 = 0;

const fn encode_cause(cause: LostCause) -> u8 {
    match cause {
        LostCause::Superseded => 1,
        LostCause::Expired => 2,
        LostCause::MaxHold => 3,
        LostCause::Ended => 4,
    }
}

const fn decode_cause(code: u8) -> Option<LostCause> {
    match code {
        1 => Some(LostCause::Superseded),
        2 => Some(LostCause::Expired),
        3 => Some(LostCause::MaxHold),
        4 => Some(LostCause::Ended),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;
    use crate::Owner;

    fn new_control(clock: &Arc<AtomicU64>) -> LockControl {
        let key = IdempotencyKey::new("k").unwrap();
        let store_key = StoreKey::new("n".try_into().unwrap(), &key);
        let seconds = clock.clone();
        let clock = Clock::from_fn(move || Duration::from_secs(seconds.load(Ordering::Relaxed)));
        let grant = Grant { token: FencingToken::new(7).unwrap(), owner: Owner::new(1).unwrap() };
        LockControl::new(store_key, key, None, grant, 3, None, clock, Duration::from_secs(10))
    }

    /// A lock that is held for ten seconds of a clock that stands still.
    pub(crate) fn new_lock() -> LockHandle {
        new_control(&Arc::default()).lock_handle().clone()
    }

    #[test]
    fn lock_shows_its_grant() {
        let lock = new_lock();
        assert_eq!((lock.key().as_bytes(), lock.namespace().as_str()), (&b"k"[..], "n"));
        assert_eq!((lock.token().get(), lock.attempt()), (7, 3));
        assert_eq!(lock.grant().token, lock.token());
        assert_eq!(lock.store_key().namespace(), lock.namespace());
        let shown = format!("{lock:?}");
        assert!(shown.contains("token: 7, attempt: 3, remaining: 10s"), "{shown}");
    }

    #[test]
    fn cause_of_loss_wakes_nobody() {
        let clock = Arc::new(AtomicU64::new(0));
        let control = new_control(&clock);
        let mut lost = task::spawn(control.lock_handle().lost());
        assert_pending!(lost.poll());
        assert_eq!((control.cause(), control.loss()), (None, None));
        clock.store(10, Ordering::Relaxed);
        assert_eq!(control.cause(), Some(LostCause::Expired));
        assert!(!lost.is_woken());
        assert_eq!(control.loss().map(|lost| lost.cause), Some(LostCause::Expired));
        assert!(lost.is_woken());
    }

    #[test]
    fn every_cause_is_kept() {
        use LostCause::{Ended, Expired, MaxHold, Superseded};
        for cause in [Superseded, Expired, MaxHold, Ended] {
            let control = new_control(&Arc::default());
            control.lose(cause);
            assert_eq!(control.cause(), Some(cause));
            assert_eq!(control.lock_handle().check().map_err(|lost| lost.cause), Err(cause));
        }
    }

    #[test]
    fn control_keeps_what_the_handler_did() {
        let control = new_control(&Arc::default());
        assert_eq!(control.deadline(), Duration::from_secs(10));
        assert!(!control.is_effect_possible() && control.completion().is_none());
        control.set_effect_possible();
        control.complete(Completion { reply: None, at: SystemTime::UNIX_EPOCH });
        assert!(control.is_effect_possible() && control.completion().is_some());
    }

    #[test]
    fn lock_is_lost_at_deadline_without_notice() {
        let clock = Arc::new(AtomicU64::new(0));
        let control = new_control(&clock);
        let lock = control.lock_handle();
        assert_eq!(lock.remaining(), Duration::from_secs(10));
        clock.store(10, Ordering::Relaxed);
        assert_eq!(lock.check().unwrap_err().cause, LostCause::Expired);
        // A late confirmation does not restore the lock.
        control.renewed(Duration::from_secs(20));
        assert!(lock.check().is_err());
        assert_eq!(lock.remaining(), Duration::ZERO);
    }

    #[test]
    fn renewal_never_moves_deadline_back() {
        let clock = Arc::new(AtomicU64::new(0));
        let control = new_control(&clock);
        let lock = control.lock_handle();
        control.renewed(Duration::from_secs(20));
        control.renewed(Duration::from_secs(15));
        assert_eq!(lock.remaining(), Duration::from_secs(20));
    }

    #[test]
    fn loss_wakes_all_waiters_with_first_cause() {
        let control = new_control(&Arc::new(AtomicU64::new(0)));
        let lock = control.lock_handle();
        let mut one = task::spawn(lock.lost());
        let mut other = task::spawn(lock.lost());
        let dropped = task::spawn(lock.lost());
        assert_pending!(one.poll());
        assert_pending!(other.poll());
        drop(dropped);
        control.lose(LostCause::Superseded);
        control.lose(LostCause::MaxHold);
        assert!(one.is_woken() && other.is_woken());
        assert_eq!(assert_ready!(one.poll()).cause, LostCause::Superseded);
        assert_eq!(assert_ready!(other.poll()).cause, LostCause::Superseded);
    }
}
