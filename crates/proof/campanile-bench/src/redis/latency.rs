//! One record at a time on an idle system, broken down by cause.

use std::future::Future;
use std::ops::Range;
use std::time::Duration;

use campanile::store::{Command, Grant, Operation, Owner, Reply, Retention, Store, StoreKey};
use campanile::{
    BoxError, FencingToken, IdempotencyKey, IdempotencyLayer, RedisStore, WithLock, lock::Clock,
};
use redis::aio::MultiplexedConnection;
use tower::ServiceExt;

use super::{Environment, ROUNDS, cpu};
use crate::handlers::{Handler, Message, key, with_layer};
use crate::report::{Goal, Report, Row};

/// Number of turns per round. Turns spread the machine's other load evenly over everything that is
/// compared.
const TURNS: u64 = 20;
const RECORDS_PER_TURN: u64 = 500;

pub(super) fn run(report: &mut Report, env: &Environment) -> Result<(), BoxError> {
    env.clear()?;
    let connect = || env.runtime.block_on(RedisStore::connect(env.redis.url()));
    let handler = with_layer(&IdempotencyLayer::new(connect()?, "latency", key)?);
    let alone = connect()?;
    let client = redis::Client::open(env.redis.url())?;
    let connection = env.runtime.block_on(client.get_multiplexed_async_connection())?;
    let (mut bare, mut store, mut product) =
        (LatencySeries::default(), LatencySeries::default(), LatencySeries::default());
    // The first round is a warm-up and does not count.
    for round in 0..=ROUNDS {
        for turn in 0..TURNS {
            let first = (round * TURNS + turn) * RECORDS_PER_TURN;
            let numbers = first..first + RECORDS_PER_TURN;
            bare.run_turn(env, time_bare_round_trips(connection.clone(), numbers.clone()))?;
            store.run_turn(env, time_store_calls(&alone, numbers.clone()))?;
            product.run_turn(env, time_handler(handler.clone(), numbers))?;
        }
        for series in [&mut bare, &mut store, &mut product] {
            series.end_round(round > 0);
        }
    }

    let mut row = |name, series: &LatencySeries, figure: fn(&LatencyRound) -> f64, goal| {
        let of = |series: &LatencySeries| series.rounds.iter().map(figure).collect();
        let (values, reference) = (of(series), Some(("two bare round trips", of(&bare))));
        report.add(Row { area: "redis", name, unit: "us", values, reference, goal });
    };
    row("one record, p50", &product, |round| round.p50, Some(Goal::AtMost(1.15)));
    row("one record, p99", &product, |round| round.p99, Some(Goal::AtMost(1.5)));
    // What limits the latency: two scripts cost Redis more than two commands, and the rest is ours.
    row("the store's two calls without a layer, p50", &store, |round| round.p50, None);
    row("Redis's processor time for one record alone", &product, |round| round.redis_cpu, None);
    row("our processor time for one record alone", &product, |round| round.own_cpu, None);
    row("that of the store's two calls", &store, |round| round.own_cpu, None);
    Ok(())
}

#[derive(Default)]
struct LatencySeries {
    /// Latencies of the current round.
    times: Vec<Duration>,
    redis_cpu: Duration,
    own_cpu: Duration,
    rounds: Vec<LatencyRound>,
}

/// All values are in microseconds per record.
struct LatencyRound {
    p50: f64,
    p99: f64,
    redis_cpu: f64,
    own_cpu: f64,
}

impl LatencySeries {
    fn run_turn(
        &mut self,
        env: &Environment,
        records: impl Future<Output = Result<Vec<Duration>, BoxError>>,
    ) -> Result<(), BoxError> {
        let redis_cpu = cpu::of_redis(env)?;
        let own_cpu = cpu::of_process();
        self.times.extend(env.runtime.block_on(records)?);
        self.own_cpu += cpu::of_process() - own_cpu;
        self.redis_cpu += cpu::of_redis(env)? - redis_cpu;
        Ok(())
    }

    fn end_round(&mut self, is_counted: bool) {
        let Self { mut times, redis_cpu, own_cpu, mut rounds } = std::mem::take(self);
        times.sort();
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let at = |part: f64| micros(times[(times.len() as f64 * part) as usize]);
        let each = |time| micros(time) / times.len() as f64;
        if is_counted {
            rounds.push(LatencyRound {
                p50: at(0.5),
                p99: at(0.99),
                redis_cpu: each(redis_cpu),
                own_cpu: each(own_cpu),
            });
        }
        self.rounds = rounds;
    }
}

/// The minimum for acquire and complete: two `SET` commands, one after the other.
async fn time_bare_round_trips(
    mut connection: MultiplexedConnection,
    numbers: Range<u64>,
) -> Result<Vec<Duration>, BoxError> {
    let clock = Clock::boot();
    let mut times = Vec::with_capacity(RECORDS_PER_TURN as usize);
    for number in numbers {
        let key = format!("bare-{number}");
        let start = clock.now();
        let mut set = redis::cmd("SET");
        set.arg(&key).arg("processing").arg("NX").arg("GET").arg("PX").arg(30_000);
        let _: Option<String> = set.query_async(&mut connection).await?;
        let mut set = redis::cmd("SET");
        set.arg(&key).arg("done").arg("PX").arg(600_000);
        let () = set.query_async(&mut connection).await?;
        times.push(clock.now() - start);
    }
    Ok(times)
}

/// The keeper's calls to the store for a record, on the caller's runtime.
async fn time_store_calls(
    store: &RedisStore,
    numbers: Range<u64>,
) -> Result<Vec<Duration>, BoxError> {
    let clock = Clock::boot();
    let mut times = Vec::with_capacity(RECORDS_PER_TURN as usize);
    for number in numbers {
        let key = key(&WithLock::new(Message(number)));
        let key = IdempotencyKey::new(key).ok_or("the key is empty")?;
        let key = StoreKey::new("alone".try_into()?, &key);
        let owner = Owner::new(number + 1).ok_or("no owner")?;
        let command =
            |operation| Command { key: key.clone(), operation, retention: Retention::default() };
        let start = clock.now();
        let acquire = Operation::Acquire {
            owner,
            ttl: Duration::from_secs(30),
            max_attempts: 8,
            fingerprint: None,
            floor: FencingToken::ZERO,
            details: None,
        };
        let Reply::Acquired { token, attempt, .. } = store.apply(command(acquire)).await?.reply
        else {
            return Err("a key was not acquired".into());
        };
        let grant = Grant { token, owner };
        let complete =
            Operation::Complete { grant, attempt, fingerprint: None, reply: None, details: None };
        let Reply::Completed = store.apply(command(complete)).await?.reply else {
            return Err("a key was not completed".into());
        };
        times.push(clock.now() - start);
    }
    Ok(times)
}

/// Measures the complete product.
async fn time_handler(
    mut handler: impl Handler,
    numbers: Range<u64>,
) -> Result<Vec<Duration>, BoxError> {
    let clock = Clock::boot();
    let mut times = Vec::with_capacity(RECORDS_PER_TURN as usize);
    for number in numbers {
        let message = WithLock::new(Message(number));
        let start = clock.now();
        handler.ready().await.map_err(Into::into)?.call(message).await.map_err(Into::into)?;
        times.push(clock.now() - start);
    }
    Ok(times)
}
