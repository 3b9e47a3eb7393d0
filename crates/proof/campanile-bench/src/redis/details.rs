//! What the details of entries cost: processor time, and memory in each state.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::ready;
use std::num::NonZeroUsize;
use std::time::Duration;

use campanile::policy::OnExhausted;
use campanile::store::{Answer, Command, Operation, Store, StoreError};
use campanile::{
    Backoff, BoxError, IdempotencyConfig, IdempotencyLayer, LockKeeper, Record, RedisStore,
    Request, WithLock,
};
use tower::{Layer, ServiceExt, service_fn};

use super::Environment;
use super::sample::Sample;
use crate::handlers::{Handler, Message, processed};
use crate::report::{Report, Row};

/// Many short slices in turns, because the differences are small.
const ROUNDS: u64 = 20;
const MESSAGES: u64 = 20_480;

const NAMESPACE: &str = "details";
const INSTANCE: &str = "billing-7d4f9c6b5-x2x7q/17";
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const BACKOFF: Duration = Duration::from_millis(10);
const ERROR: &str = "the payment was declined: no funds";

/// The contestant that the others are compared with.
const WITHOUT: &str = "without details";

type Key = fn(&Request<u64>) -> String;
type Figure = fn(&Sample) -> f64;

struct Contestant {
    name: &'static str,
    layer: IdempotencyLayer<Key>,
    samples: Vec<Sample>,
}

pub(super) fn run(report: &mut Report, env: &Environment) -> Result<(), BoxError> {
    let mut contestants = contestants(env)?;
    // The first round is a warm-up and does not count.
    for round in 0..=ROUNDS {
        for contestant in &mut contestants {
            env.clear()?;
            let numbers = round * MESSAGES..(round + 1) * MESSAGES;
            let handler = with_record(&contestant.layer);
            let sample = Sample::of(env, &[&env.redis], handler, numbers, 256)?;
            if round > 0 {
                contestant.samples.push(sample);
            }
        }
    }
    let redis: Figure = |sample| sample.redis_cpu;
    let ours: Figure = |sample| sample.own_cpu;
    for (unit, figure) in [("us, Redis", redis), ("us, ours", ours)] {
        let of = |contestant: &Contestant| contestant.samples.iter().map(figure).collect();
        for contestant in &contestants {
            let (name, values) = (contestant.name, of(contestant));
            let is_reference = name == WITHOUT;
            let reference = (!is_reference).then(|| (WITHOUT, of(&contestants[0])));
            report.add(Row { area: "redis", name, unit, values, reference, goal: None });
        }
    }
    for Contestant { name, layer, .. } in contestants {
        for (unit, bytes) in env.runtime.block_on(bytes_by_state(env, layer))? {
            let values = vec![bytes];
            report.add(Row { area: "redis", name, unit, values, reference: None, goal: None });
        }
    }
    env.clear()
}

fn contestants(env: &Environment) -> Result<[Contestant; 4], BoxError> {
    let store = env.runtime.block_on(RedisStore::connect(env.redis.url()))?;
    let contestant = |name, keeper: LockKeeper, set: fn(IdempotencyConfig) -> IdempotencyConfig| {
        let config = IdempotencyConfig::new(NAMESPACE).with_max_attempts(2);
        let config = set(config.with_backoff(Backoff::new(BACKOFF, BACKOFF)?));
        let keeper = keeper.with_instance(INSTANCE);
        let layer = IdempotencyLayer::new(&keeper, config, key as Key)?;
        let layer = layer.on_exhausted(OnExhausted::GiveUp);
        Ok::<_, BoxError>(Contestant { name, layer, samples: Vec::new() })
    };
    let keeper = || LockKeeper::new(store.clone());
    Ok([
        contestant(WITHOUT, LockKeeper::new(WithoutDetails(store.clone()))?, |config| config)?,
        contestant("details by default", keeper()?, |config| config)?,
        contestant("details without the key, no errors", keeper()?, |config| {
            config.with_stored_keys(false).with_stored_errors(false)
        })?,
        contestant("details kept when COMPLETED", keeper()?, |config| {
            config.with_completed_details(true)
        })?,
    ])
}

fn key(request: &Request<u64>) -> String {
    format!("4bf92f35-77b3-4da6-a3ce-{:012}", request.body())
}

/// Requests with a record and a trace, as from the driver.
fn with_record(layer: &IdempotencyLayer<Key>) -> impl Handler + use<> {
    let inner = service_fn(|_: Request<u64>| ready(Ok::<_, Infallible>(())));
    let service = layer.layer(inner).map_result(processed);
    service.map_request(|message: WithLock<Message>| request(message.0))
}

fn request(number: u64) -> Request<u64> {
    let record = Record::builder("payments", 3, number as i64).header("traceparent", TRACE);
    Request::new(record.build(), number)
}

/// Measures an entry in each state: its key and its value, without the share of Redis's tables.
async fn bytes_by_state(
    env: &Environment,
    layer: IdempotencyLayer<Key>,
) -> Result<[(&'static str, f64); 4], BoxError> {
    let bytes = || {
        let script = format!(
            "return redis.call('MEMORY', 'USAGE', redis.call('KEYS', '{{{NAMESPACE}:*')[1])"
        );
        Ok::<f64, BoxError>(env.redis.cli(&["EVAL", &script, "0"])?.trim().parse()?)
    };
    let attempt = async |fails: bool| {
        let while_running = Cell::new(None);
        let handler = service_fn(|_: Request<u64>| {
            while_running.set(Some(bytes()));
            ready(if fails { Err(BoxError::from(ERROR)) } else { Ok(()) })
        });
        // An attempt that fails returns its error.
        let _ = layer.layer(handler).oneshot(request(0)).await;
        while_running.take().ok_or("the handler was not called")?
    };
    env.clear()?;
    let processing = attempt(false).await?;
    let completed = bytes()?;
    env.clear()?;
    attempt(true).await?;
    let retrying = bytes()?;
    // The second attempt is the last one.
    tokio::time::sleep(2 * BACKOFF).await;
    attempt(true).await?;
    let failed = bytes()?;
    Ok([
        ("B PROCESSING", processing),
        ("B RETRYING", retrying),
        ("B FAILED", failed),
        ("B COMPLETED", completed),
    ])
}

/// A store that sends no details.
#[derive(Clone)]
struct WithoutDetails(RedisStore);

fn without_details(mut command: Command) -> Command {
    if let Operation::Acquire { details, .. } = &mut command.operation {
        *details = None;
    }
    command
}

impl Store for WithoutDetails {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        self.0.apply(without_details(command)).await
    }

    async fn apply_batch(&self, batch: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        self.0.apply_batch(batch.into_iter().map(without_details).collect()).await
    }

    fn max_batch(&self) -> NonZeroUsize {
        self.0.max_batch()
    }

    fn for_renewals(&self) -> Self {
        Self(self.0.for_renewals())
    }
}
