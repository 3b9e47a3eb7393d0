//! The store and `step`, side by side.

use std::collections::HashMap;
use std::time::Duration;

use campanile_core::{FencingToken, Fingerprint, Grant, Operation, Owner, Reply, StoreKey};
use campanile_idempotency::Store;
use fastrand::Rng;

use super::witness::{BRIEF, Kept, LONG, Witness};
use super::{RealTime, Time};

/// How many operations [`run`](super::run) tries.
const OPERATIONS: usize = 3000;

/// Sends random operations, by themselves and in batches, and holds every answer against
/// [`step`](campanile_core::step) by the answer's own `now`. The same seed makes the same choices, as
/// far as the store's clock and tokens do not differ.
///
/// # Panics
/// When the store answers otherwise, with the seed.
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
        // Distinct keys, as a batch has them; now and then a new one.
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

/// Draws operations that have something to do with what went before.
struct Chance {
    rng: Rng,
    /// The last grants of each key, the stale ones, too.
    grants: HashMap<StoreKey, Vec<Grant>>,
    /// The last operation on each key, for repeats.
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

    /// Mostly the last, sometimes a stale one, seldom nobody's.
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

    /// Few, so that the same one comes again to the same key.
    fn owner(&mut self) -> Owner {
        Owner::new(self.rng.u64(1..200)).expect("not zero")
    }

    fn fingerprint(&mut self) -> Option<Fingerprint> {
        // Mostly the same, for after a mismatch nothing else happens to a key.
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
        self.rng.choice(["", "declined", "no such account", "ünïcödé"]).expect("there are some")
    }
}
