//! A differential test of the store against `step`.

use std::collections::HashMap;
use std::time::Duration;

use campanile_core::{
    Details, FencingToken, Fingerprint, Grant, Operation, Owner, Reply, StoreKey,
};
use campanile_idempotency::Store;
use fastrand::Rng;

use super::checker::{CheckResult, LONG_DURATION, ModelChecker, SHORT_DURATION};
use super::{RealTime, Time};

/// Number of operations that [`run`](super::run) applies.
const OPERATIONS: usize = 3000;

/// Sends random operations, alone and in batches, and compares every answer with
/// [`step`](campanile_core::step) at the answer's own `now`. The same seed makes the same choices,
/// as long as the store's clock and tokens do not differ.
///
/// # Panics
/// Panics with the seed if an answer of the store differs from `step`'s.
pub async fn differential<S: Store>(store: &S, operations: usize, seed: u64) {
    let checker = ModelChecker::new(store, &RealTime);
    if let Err(seen) = run_differential(&checker, operations, seed).await {
        panic!("seed {seed}: {seen}");
    }
}

pub(super) async fn random_operations_answer_as_step_does<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let seed = fastrand::u64(..);
    let result = run_differential(checker, OPERATIONS, seed).await;
    result.map_err(|seen| format!("seed {seed}: {seen}"))
}

async fn run_differential<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
    operations: usize,
    seed: u64,
) -> CheckResult {
    const KEYS: usize = 8;
    let mut generator = OperationGenerator::new(seed);
    let mut keys: Vec<_> = (0..KEYS).map(|_| checker.key()).collect();
    let max_batch = checker.store.max_batch().get().min(KEYS);
    let mut applied = 0;
    while applied < operations {
        let size = if generator.rng.bool() { 1 } else { generator.rng.usize(1..=max_batch) };
        // A batch has distinct keys. Now and then, one of them is new.
        generator.rng.shuffle(&mut keys);
        if generator.rng.u8(..) < 8 {
            keys[0] = checker.key();
        }
        let batch: Vec<_> =
            keys[..size].iter().map(|key| (key.clone(), generator.operation(key))).collect();
        if let [(key, operation)] = &batch[..] {
            let answer = checker.apply(key, operation.clone()).await?;
            generator.record(key, operation, &answer.reply);
        } else {
            let answers = checker.apply_batch(batch.clone()).await?;
            for ((key, operation), answer) in batch.iter().zip(answers) {
                generator.record(key, operation, &answer.reply);
            }
        }
        if generator.rng.u8(..) < 8 {
            checker.wait(SHORT_DURATION).await?;
        }
        applied += size;
    }
    Ok(())
}

/// Draws operations that relate to earlier ones.
struct OperationGenerator {
    rng: Rng,
    /// The last grants of each key, including stale ones.
    grants: HashMap<StoreKey, Vec<Grant>>,
    /// The last operation on each key, to be repeated.
    last: HashMap<StoreKey, Operation>,
    floor: FencingToken,
}

impl OperationGenerator {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            grants: HashMap::new(),
            last: HashMap::new(),
            floor: FencingToken::ZERO,
        }
    }

    fn record(&mut self, key: &StoreKey, operation: &Operation, reply: &Reply) {
        if let (
            Operation::Acquire { owner, .. },
            Reply::Acquired { token, .. } | Reply::Exhausted { token, .. },
        ) = (operation, reply)
        {
            const MAX_GRANTS: usize = 3;
            let (token, owner) = (*token, *owner);
            let grants = self.grants.entry(key.clone()).or_default();
            grants.push(Grant { token, owner });
            if grants.len() > MAX_GRANTS {
                grants.remove(0);
            }
            self.floor = self.floor.max(token);
        }
        self.last.insert(key.clone(), operation.clone());
    }

    fn operation(&mut self, key: &StoreKey) -> Operation {
        if let Some(last) = self.last.get(key)
            && self.rng.u8(..) < 40
        {
            return last.clone();
        }
        let grant = self.grant(key);
        match self.rng.u8(..100) {
            ..35 => self.acquire(),
            35..45 => {
                let ttl = self.duration();
                Operation::Renew { grant, ttl }
            }
            45..52 => Operation::Complete {
                grant,
                attempt: self.rng.u16(1..5),
                fingerprint: self.fingerprint(),
                reply: self.rng.bool().then(|| self.text().into()),
                details: self.details(),
            },
            52..62 => Operation::RecordStep {
                grant,
                name: self.text().into(),
                result: self.text().into(),
            },
            62..74 => Operation::Fail {
                grant,
                delay: self.duration(),
                last: self.rng.u8(..8) == 0,
                error: self.text().into(),
            },
            74..82 => {
                let ran = self.rng.bool();
                Operation::Release { grant, ran }
            }
            82..87 => {
                let owner = grant.owner;
                Operation::Cancel { owner }
            }
            87..92 => {
                let reason = self.text().into();
                Operation::GiveUp { grant, reason }
            }
            _ => {
                let (token, force) = (grant.token, self.rng.bool());
                Operation::Redrive { token, force }
            }
        }
    }

    fn acquire(&mut self) -> Operation {
        let none = FencingToken::ZERO;
        Operation::Acquire {
            owner: self.owner(),
            ttl: self.duration(),
            max_attempts: self.rng.u16(..4),
            fingerprint: self.fingerprint(),
            floor: if self.rng.bool() { self.floor } else { none },
            details: self.details(),
        }
    }

    /// Draws mostly the last grant, sometimes a stale one, and rarely one that was never made.
    fn grant(&mut self, key: &StoreKey) -> Grant {
        let unknown_grant = Grant { token: self.floor, owner: self.owner() };
        let Some(grants) = self.grants.get(key) else {
            return unknown_grant;
        };
        match self.rng.u8(..16) {
            0 => unknown_grant,
            1..4 => *self.rng.choice(grants).unwrap_or(&unknown_grant),
            _ => *grants.last().unwrap_or(&unknown_grant),
        }
    }

    /// Draws from few values, so that the same owner meets the same key again.
    fn owner(&mut self) -> Owner {
        Owner::new(self.rng.u64(1..200)).expect("not zero")
    }

    fn fingerprint(&mut self) -> Option<Fingerprint> {
        // Mostly the same payload: after a mismatch, the key takes part in nothing else.
        match self.rng.u8(..16) {
            0..6 => None,
            6 => Some(Fingerprint::of(b"another")),
            _ => Some(Fingerprint::of(b"payload")),
        }
    }

    fn details(&mut self) -> Option<Details> {
        let (owner, instance) = (self.owner(), self.text());
        self.rng.bool().then(|| Details::builder(owner).instance(instance).build())
    }

    fn duration(&mut self) -> Duration {
        match self.rng.u8(..8) {
            0..4 => SHORT_DURATION,
            4..6 => Duration::ZERO,
            _ => LONG_DURATION,
        }
    }

    fn text(&mut self) -> &'static str {
        self.rng.choice(["", "declined", "no such account", "ünïcödé"]).expect("not empty")
    }
}
