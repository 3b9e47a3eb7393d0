//! The server's maximum throughput, measured with its own tool.

use std::fs;
use std::process::Command;

use campanile::BoxError;

use super::Environment;

/// Duration of a measurement, in seconds.
const SECONDS: &str = "4";

/// A table like the store's, with enough rows to get the query plans of a large table.
const TABLE: &str = "
    CREATE TABLE plain (LIKE campanile.entry INCLUDING ALL);
    CREATE SEQUENCE numbers;
    INSERT INTO plain (namespace, key, state, attempt, token, owner, created, at, expires_at)
        SELECT 'bench', decode(md5((-i)::text), 'hex'), 'C', 1, 5, 7, now(), now(), now() + interval '7 d'
        FROM generate_series(1, 100000) i;
    ANALYZE plain";

pub(super) fn prepare(env: &Environment) -> Result<(), BoxError> {
    env.postgres.psql(TABLE)?;
    env.postgres.psql("VACUUM plain")?;
    Ok(())
}

/// Measures the messages per second of two minimal statements, each for `keys` keys: an insert
/// unless the key exists, and an update by token and owner.
pub(super) fn per_second(env: &Environment, keys: u32, clients: u32) -> Result<f64, BoxError> {
    let numbers = format!("generate_series(:n * {keys}, :n * {keys} + {keys} - 1) i");
    let script = format!(
        "SELECT nextval('numbers') AS n \\gset\n\
         INSERT INTO plain (namespace, key, state, attempt, token, owner, created, at, expires_at) \
         SELECT 'bench', decode(md5(i::text), 'hex'), 'P', 1, 5, 7, clock_timestamp(), \
         clock_timestamp() + interval '30 s', clock_timestamp() + interval '7 d' \
         FROM {numbers} ON CONFLICT DO NOTHING;\n\
         UPDATE plain SET state = 'C', at = clock_timestamp(), \
         expires_at = clock_timestamp() + interval '7 d' \
         FROM {numbers} WHERE namespace = 'bench' AND key = decode(md5(i::text), 'hex') \
         AND token = 5 AND owner = 7 AND state = 'P';\n"
    );
    let file = std::env::temp_dir().join(format!("campanile-pgbench-{}.sql", std::process::id()));
    fs::write(&file, script)?;
    let run = pgbench(env, clients, &file.to_string_lossy());
    fs::remove_file(&file)?;
    Ok(run? * f64::from(keys))
}

/// Measures the transactions per second with `pgbench`.
fn pgbench(env: &Environment, clients: u32, file: &str) -> Result<f64, BoxError> {
    let (port, clients) = (env.postgres.port().to_string(), clients.to_string());
    let output = Command::new("pgbench")
        .args(["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-n", "-M", "prepared"])
        .args(["-c", &clients, "-j", "1", "-T", SECONDS, "-f", file, "postgres"])
        // Enforces the plans of a large table, whatever the current statistics say.
        .env("PGOPTIONS", "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off")
        .output()
        .map_err(|error| format!("pgbench: {error}; `cargo xtask install` installs it"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok())
        .ok_or_else(|| {
            let stderr = String::from_utf8_lossy(&output.stderr);
            format!("pgbench printed no figure: {text}{stderr}").into()
        })
}
