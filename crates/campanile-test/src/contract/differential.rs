//! A differential test of the store against `step`.

use std::collections::HashMap;
use std::time::Duration;

use campanile_core::{FencingToken, Fingerprint, Grant, Operation, Owner, Reply, StoreKey};
use campanile_idempotency::Store;
use fastrand::Rng;

use super::witness::{BRIEF, Kept, LONG, Witness};
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
    let witness = Witness::new(store, &RealTime);
    if let Err(seen) = differ(&witness, operations, seed).await {
        panic!("seed {seed}: {seen}");
    }
}

pub(super) async fn random_operations_answer_as_step_does<S: Store, T: Time>(
    witness: &Witness<'_, S, T>,
) -> Kept {
    let seed = fastrand::u64(..);
    let done = differ(witness, OPERATIONS, seed).await;
    done.map_err(|seen| format!("seed {seed}: {seen}"))
}

async fn differ<S: Store, T: Time>(
    witness: &Witness<'_, S, T>,
    operations: usize,
    seed: u64,
) -> Kept {
    const KEYS: usize = 8;
    let mut chance = Chance::new(seed);
    let mut keys: Vec<_> = (0..KEYS).map(|_| witness.key()).collect();
    let most = witness.store.max_batch().get().min(KEYS);
    let mut done = 0;
    while done < operations {
        let size = if chance.rng.bool() { 1 } else { chance.rng.usize(1..=most) };
        // A batch has distinct keys. Now and then, one of them is new.
        chance.rng.shuffle(&mut keys);
        if chance.rng.u8(..) < 8 {
            keys[0] = witness.key();
        }
        let batch: Vec<_> =
            keys[..size].iter().map(|key| (key.clone(), chance.operation(key))).collect();
        if let [(key, operation)] = &batch[..] {
            let answer = witness.apply(key, operation.clone()).await?;
            chance.learn(key, operation, &answer.reply);
        } else {
            let answers = witness.apply_batch(batch.clone()).await?;
            for ((key, operation), answer) in batch.iter().zip(answers) {
                chance.learn(key, operation, &answer.reply);
            }
        }
        if chance.rng.u8(..) < 8 {
            witness.wait(BRIEF).await?;
        }
        done += size;
    }
    Ok(())
}

/// Draws operations that relate to earlier ones.
struct Chance {
    rng: Rng,
    /// The last grants of each key, including stale ones.
    grants: HashMap<StoreKey, Vec<Grant>>,
    /// The last operation on each key, to be repeated.
    last: HashMap<StoreKey, Operation>,
    floor: FencingToken,
}

impl Chance {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            grants: HashMap::new(),
            last: HashMap::new(),
            floor: FencingToken::ZERO,
        }
    }

    fn learn(&mut self, key: &StoreKey, operation: &Operation, reply: &Reply) {
        if let (
            Operation::Acquire { owner, .. },
            Reply::Acquired { token, .. } | Reply::Exhausted { token, .. },
        ) = (operation, reply)
        {
            const REMEMBERED: usize = 3;
            let (token, owner) = (*token, *owner);
            let grants = self.grants.entry(key.clone()).or_default();
            grants.push(Grant { token, owner });
            if grants.len() > REMEMBERED {
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
                let ttl = self.time();
                Operation::Renew { grant, ttl }
            }
            45..52 => Operation::Complete {
                grant,
                attempt: self.rng.u16(1..5),
                fingerprint: self.fingerprint(),
                reply: self.rng.bool().then(|| self.text().into()),
            },
            52..70 => Operation::Fail {
                grant,
                delay: self.time(),
                last: self.rng.u8(..8) == 0,
                error: self.text().into(),
            },
            70..80 => {
                let ran = self.rng.bool();
                Operation::Release { grant, ran }
            }
            80..86 => {
                let owner = grant.owner;
                Operation::Cancel { owner }
            }
            86..91 => {
                let reason = self.text().into();
                Operation::Reject { grant, reason }
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
            ttl: self.time(),
            max_attempts: self.rng.u16(..4),
            fingerprint: self.fingerprint(),
            floor: if self.rng.bool() { self.floor } else { none },
        }
    }

    /// Draws mostly the last grant, sometimes a stale one, and rarely one that was never made.
    fn grant(&mut self, key: &StoreKey) -> Grant {
        let nobodys = Grant { token: self.floor, owner: self.owner() };
        let Some(grants) = self.grants.get(key) else {
            return nobodys;
        };
        match self.rng.u8(..16) {
            0 => nobodys,
            1..4 => *self.rng.choice(grants).unwrap_or(&nobodys),
            _ => *grants.last().unwrap_or(&nobodys),
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

    fn time(&mut self) -> Duration {
        match self.rng.u8(..8) {
            0..4 => BRIEF,
            4..6 => Duration::ZERO,
            _ => LONG,
        }
    }

    fn text(&mut self) -> &'static str {
        self.rng.choice(["", "declined", "no such account", "ünïcödé"]).expect("not empty")
    }
}
