//! `redrive` of letters that are all brought back.

use std::future::pending;
use std::num::NonZeroU32;
use std::time::Duration;

use campanile::lock::{Clock, FencingToken};
use campanile::store::{Command, Operation, Owner, Reply, Retention, Store, StoreKey};
use campanile::{BoxError, IdempotencyKey, RedisStore};
use campanile_admin::redrive::{LetterReport, Redrive, RedriveObserver};
use campanile_test::Message;

use super::{Environment, NAMESPACE, ROUNDS, add};
use crate::report::{Goal, Report};

const LETTERS: u64 = 50_000;
const PARTITIONS: i32 = 6;
const TOPIC: &str = "invoices";
const DEAD_LETTERS: &str = "invoices.dead";

/// The limit that is measured, and the number of letters for it.
const RATE: NonZeroU32 = NonZeroU32::new(1_000).unwrap();
const PACED_LETTERS: u64 = 5_000;

pub(super) fn run(report: &mut Report, env: &Environment) -> Result<(), BoxError> {
    let store = env.runtime.block_on(RedisStore::connect(env.redis.url()))?;
    for topic in [TOPIC, DEAD_LETTERS] {
        env.kafka.create_topic(topic, PARTITIONS, &[])?;
    }
    env.runtime.block_on(fill(env, &store))?;
    let mut kafka = env.kafka.consumer_config("replaced");
    kafka.remove("group.id");
    let (mut whole, mut handling, mut deviations) = (vec![], vec![], vec![]);
    let clock = Clock::boot();
    for round in 0..ROUNDS {
        // Another group begins at the first letter. Only the first run reopens the keys; the others
        // look them up, and produce their records.
        let run = |redrive: Redrive, kind: &str, letters: u64| {
            let redrive = redrive.with_group(format!("{kind}-{round}"));
            let mut observer = Observer::new(clock.clone());
            let start = clock.now();
            let summary = redrive.run(&kafka, &store, &mut observer, pending::<()>());
            let summary = env.runtime.block_on(summary)?;
            if summary.reopened + summary.produced != letters {
                return Err(
                    format!("not all {letters} letters were brought back: {summary:?}").into()
                );
            }
            Ok::<_, BoxError>((letters as f64 / (clock.now() - start).as_secs_f64(), observer))
        };
        let (per_second, observer) = run(Redrive::new(DEAD_LETTERS), "fast", LETTERS)?;
        whole.push(per_second);
        handling.push(observer.per_second());
        let paced = Redrive::new(DEAD_LETTERS).with_rate(RATE).with_max(PACED_LETTERS);
        let (_, observer) = run(paced, "paced", PACED_LETTERS)?;
        deviations.push(100.0 * (observer.per_second() / f64::from(RATE.get()) - 1.0).abs());
    }
    let goal = Some(Goal::AtLeast(5_000.0));
    add(report, "redrive, with the time to join its group", whole, "letters/s", goal);
    add(report, "redrive, from its first letters", handling, "letters/s", goal);
    let goal = Some(Goal::AtMost(5.0));
    add(report, "deviation from --rate 1000", deviations, "%", goal);
    Ok(())
}

/// Gives the keys up, and produces their letters.
async fn fill(env: &Environment, store: &RedisStore) -> Result<(), BoxError> {
    const CHUNK: u64 = 1_000;
    let producer = env.kafka.producer();
    for first in (0..LETTERS).step_by(CHUNK as usize) {
        let mut letters = Vec::new();
        for number in first..first + CHUNK {
            let name = format!("payments/2f1c7a54-9d0e-4b7c-8a41/{number:012}");
            let key = IdempotencyKey::new(name.clone()).ok_or("the key is empty")?;
            let owner = Owner::new(number + 1).ok_or("the owner is zero")?;
            letters.push((name, StoreKey::new(NAMESPACE.try_into()?, &key), owner));
        }
        let apply = |operations: Vec<Operation>| {
            let command = |((_, key, _), operation): (&(_, StoreKey, _), _)| Command {
                key: key.clone(),
                operation,
                retention: Retention::default(),
            };
            store.apply_batch(letters.iter().zip(operations).map(command).collect())
        };
        let acquire = |&(_, _, owner): &(_, _, Owner)| Operation::Acquire {
            owner,
            ttl: Duration::from_secs(30),
            max_attempts: 8,
            fingerprint: None,
            floor: FencingToken::ZERO,
            details: None,
        };
        let mut give_ups = Vec::new();
        let mut messages = Vec::new();
        let granted = apply(letters.iter().map(acquire).collect()).await;
        for (answer, (name, _, owner)) in granted.into_iter().zip(&letters) {
            let Reply::Acquired { token, .. } = answer?.reply else {
                return Err("a key was not granted".into());
            };
            let grant = campanile::store::Grant { token, owner: *owner };
            give_ups.push(Operation::GiveUp { grant, reason: "card declined".into() });
            messages.push(letter(name, token));
        }
        for answer in apply(give_ups).await {
            answer?;
        }
        producer.produce_all(messages)?;
    }
    Ok(())
}

/// A letter, as the driver publishes it.
fn letter(key: &str, token: FencingToken) -> Message {
    Message::to(DEAD_LETTERS)
        .key(key)
        .payload(vec![b'x'; 200])
        .header("kafka_dlt-original-topic", TOPIC)
        .header("kafka_dlt-original-partition", 0_i32.to_be_bytes())
        .header("kafka_dlt-original-offset", 7_i64.to_be_bytes())
        .header("kafka_dlt-original-timestamp", 1500_i64.to_be_bytes())
        .header("kafka_dlt-original-timestamp-type", "CreateTime")
        .header("kafka_dlt-exception-message", "card declined")
        .header("campanile-cause", "exhausted")
        .header("campanile-key", key)
        .header("campanile-namespace", NAMESPACE)
        .header("campanile-token", token.to_string())
}

/// Notes when letters were handled.
struct Observer {
    clock: Clock,
    first: Option<Duration>,
    last: Duration,
    /// Those after the first round.
    letters: u64,
}

impl Observer {
    fn new(clock: Clock) -> Self {
        Self { clock, first: None, last: Duration::ZERO, letters: 0 }
    }

    fn per_second(&self) -> f64 {
        let took = self.last.saturating_sub(self.first.unwrap_or_default());
        self.letters as f64 / took.as_secs_f64()
    }
}

impl RedriveObserver for Observer {
    fn handled(&mut self, reports: &[LetterReport]) -> Result<(), BoxError> {
        self.last = self.clock.now();
        match self.first {
            None => self.first = Some(self.last),
            Some(_) => self.letters += reports.len() as u64,
        }
        Ok(())
    }
}
