//! `list` and `explain` with many entries in Redis.

use std::thread;
use std::time::Duration;

use campanile::BoxError;
use campanile::lock::Clock;
use campanile::store::State;
use campanile_admin::entries::{EntryPages, EntryQuery};
use campanile_admin::explain::{Explain, KeySource};
use campanile_admin::{AnyStore, StoreConfig};
use campanile_test::Message;

use super::ping::Pings;
use super::{Environment, NAMESPACE, ROUNDS, add};
use crate::driver::usage;
use crate::redis::cpu;
use crate::report::{Goal, Report, Row};

/// Plants COMPLETED entries, and one FAILED entry in a thousand, in the layout of `docs/protocol.md`.
const FILL: &str = "local time = redis.call('TIME') \
    local seconds = tonumber(time[1]) \
    for i = ARGV[1], ARGV[2] do \
        local digest = struct.pack('>I4I4I4I4', i * 2654435761 % 4294967296, i, i, i) \
        local name = string.format('{' .. ARGV[3] .. ':%02x}', i % 16) .. digest \
        local is_failed = i % 1000 == 0 \
        local value = struct.pack('>BBI2BBBBI8I8I8I4I8', 0xC1, is_failed and 4 or 3, 1, 0, 0, \
            is_failed and 1 or 0, 0, seconds * 1000000, i + 1, 0, seconds, seconds * 1000000) \
        if is_failed then value = value .. 'card declined' end \
        redis.call('SET', name, value, 'PX', 604800000) \
    end";

/// The number of entries that the durations are given for.
const TEN_MILLION: f64 = 1e7;

/// How long the list with pauses is observed.
const OBSERVED: Duration = Duration::from_secs(10);

pub(super) fn run(report: &mut Report, env: &Environment, entries: u64) -> Result<(), BoxError> {
    fill(env, entries)?;
    let store = env.redis.url().parse::<StoreConfig>()?;
    let store = env.runtime.block_on(store.connect_to_inspect())?;
    let pages = at_full_speed(report, env, &store, entries)?;
    with_pauses(report, env, &store, TEN_MILLION * pages as f64 / entries as f64)?;
    explain(report, env)
}

fn fill(env: &Environment, entries: u64) -> Result<(), BoxError> {
    /// Few enough for a reply in time on a busy machine.
    const CHUNK: u64 = 1_000;
    for first in (0..entries).step_by(CHUNK as usize) {
        let (first, last) = (first.to_string(), (first + CHUNK - 1).to_string());
        env.redis.cli(&["EVAL", FILL, "0", &first, &last, NAMESPACE])?;
    }
    Ok(())
}

fn list(store: &AnyStore) -> Result<EntryPages<'_, AnyStore>, BoxError> {
    let query = EntryQuery::new(NAMESPACE.try_into()?).with_state(State::Failed);
    Ok(EntryPages::new(store, query))
}

/// Returns the number of pages.
fn at_full_speed(
    report: &mut Report,
    env: &Environment,
    store: &AnyStore,
    entries: u64,
) -> Result<u64, BoxError> {
    let clock = Clock::boot();
    let (mut seconds, mut micros, mut shares, mut slow) = (vec![], vec![], vec![], vec![]);
    let (mut alone, mut meanwhile) = (vec![], vec![]);
    let memory = usage::peak();
    let mut count = 0;
    for _ in 0..ROUNDS {
        let pings = Pings::start(&env.redis)?;
        thread::sleep(OBSERVED / 10);
        alone.push(pings.finish()?);
        env.redis.cli(&["SLOWLOG", "RESET"])?;
        let pings = Pings::start(&env.redis)?;
        let (start, used) = (clock.now(), cpu::of_server(&env.redis)?);
        let (found, pages) = env.runtime.block_on(async {
            let mut pages = list(store)?.with_max_share(100);
            let (mut found, mut count) = (0, 0);
            while let Some(page) = pages.next().await? {
                found += page.len() as u64;
                count += 1;
            }
            Ok::<_, BoxError>((found, count))
        })?;
        let (took, used) = (clock.now() - start, cpu::of_server(&env.redis)? - used);
        meanwhile.push(pings.finish()?);
        if found < entries.div_ceil(1000) {
            return Err(format!("only {found} FAILED entries were listed").into());
        }
        let slow_commands: f64 = env.redis.cli(&["SLOWLOG", "LEN"])?.trim().parse()?;
        seconds.push(took.as_secs_f64() * TEN_MILLION / entries as f64);
        micros.push(used.as_secs_f64() * 1e6 / entries as f64);
        shares.push(100.0 * used.as_secs_f64() / took.as_secs_f64());
        slow.push(1000.0 * slow_commands / pages as f64);
        count = pages;
    }
    let memory = (usage::peak() - memory) as f64 / 1048576.0;
    add(report, "list at full speed", seconds, "s/10 M", Some(Goal::AtMost(60.0)));
    add(report, "Redis's processor time for it", micros, "us/entry", None);
    add(report, "its share of Redis's time", shares, "%", None);
    add(report, "commands above 1 ms", slow, "of 1 000", Some(Goal::AtMost(1.0)));
    report.add(Row {
        area: "admin",
        name: "99th percentile of a PING meanwhile",
        unit: "us",
        values: meanwhile,
        reference: Some(("without it", alone)),
        goal: None,
    });
    add(report, "peak memory for it", vec![memory], "MiB", None);
    Ok(count)
}

/// Measures the beginning of a list. `pages`: those of 10 million entries.
fn with_pauses(
    report: &mut Report,
    env: &Environment,
    store: &AnyStore,
    pages: f64,
) -> Result<(), BoxError> {
    let clock = Clock::boot();
    let (mut minutes, mut shares) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        // Redis also deletes expired entries.
        let used = cpu::of_server(&env.redis)?;
        thread::sleep(OBSERVED / 2);
        let idle =
            (cpu::of_server(&env.redis)? - used).as_secs_f64() / (OBSERVED / 2).as_secs_f64();
        let (start, used) = (clock.now(), cpu::of_server(&env.redis)?);
        let read = env.runtime.block_on(async {
            let (mut pages, mut count) = (list(store)?, 0);
            while clock.now() - start < OBSERVED && pages.next().await?.is_some() {
                count += 1;
            }
            Ok::<_, BoxError>(count)
        })?;
        let (took, used) = (clock.now() - start, cpu::of_server(&env.redis)? - used);
        minutes.push(took.as_secs_f64() / 60.0 * pages / f64::from(read));
        shares.push(100.0 * (used.as_secs_f64() / took.as_secs_f64() - idle));
    }
    add(report, "list with the default pauses", minutes, "min/10 M", None);
    add(report, "its share of Redis's time", shares, "%", Some(Goal::AtMost(5.0)));
    Ok(())
}

/// Measures all that the command does, but not the start of its process.
fn explain(report: &mut Report, env: &Environment) -> Result<(), BoxError> {
    env.kafka.create_topic("payments", 1, &[])?;
    let header = KeySource::default();
    env.kafka.producer().produce(Message::to("payments").header("idempotency-key", "p-1"))?;
    let mut kafka = env.kafka.consumer_config("billing");
    kafka.remove("group.id");
    let clock = Clock::boot();
    let mut millis = vec![];
    for _ in 0..ROUNDS {
        let start = clock.now();
        env.runtime.block_on(async {
            let store = env.redis.url().parse::<StoreConfig>()?.connect_to_inspect().await?;
            let explain = Explain::new("payments/0@0".parse()?, NAMESPACE.try_into()?);
            explain.with_group("billing").run(&kafka, &store, &header).await?;
            Ok::<_, BoxError>(())
        })?;
        millis.push((clock.now() - start).as_secs_f64() * 1e3);
    }
    add(report, "explain with these entries", millis, "ms", Some(Goal::AtMost(1000.0)));
    Ok(())
}
