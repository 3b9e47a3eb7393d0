use crate::progress::Progress;
use crate::{Result, libs};
use std::path::Path;
use std::process::Command;
use std::{fs, io, process};

/// Resolves and copies the dependencies of the generated project.
const GOAL: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";

/// Kafka depends on slf4j 1.7 without a backend; this is a backend for it.
const LOG4J: &str = "2.24.3";

/// Fetches the jars of Apache Kafka from Maven Central into `libs`.
///
/// The jars are collected in a temporary folder first, so that an interrupted fetch leaves no
/// incomplete `libs`.
pub(crate) fn jars(progress: &Progress, libs: &Path) -> Result {
    let parent = libs.parent().ok_or("the folder for Kafka's jars has no parent")?;
    let work_dir = parent.join(format!("fetch-{}", process::id()));
    fs::create_dir_all(&work_dir)?;
    let fetched = fetch(progress, &work_dir, libs);
    fs::remove_dir_all(&work_dir)?;
    fetched
}

fn fetch(progress: &Progress, work_dir: &Path, libs: &Path) -> Result {
    fs::write(work_dir.join("pom.xml"), pom())?;
    progress.run(
        Command::new("mvn")
            .args(["--batch-mode", GOAL, "-DincludeScope=runtime"])
            .arg("-DoutputDirectory=libs")
            .current_dir(work_dir),
    )?;
    Ok(move_into_place(&work_dir.join("libs"), libs)?)
}

/// Moves the folder to its destination, unless another process has created it meanwhile.
fn move_into_place(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(_) if to.is_dir() => Ok(()),
        result => result,
    }
}

/// Generates a project that consists only of dependencies.
fn pom() -> String {
    let dependency = |group: &str, artifact: &str, version: &str| {
        format!(
            "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>\
             <version>{version}</version></dependency>\n"
        )
    };
    let dependencies = [
        dependency("org.apache.kafka", "kafka_2.13", libs::VERSION),
        dependency("org.apache.logging.log4j", "log4j-core", LOG4J),
        dependency("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J),
    ];
    format!(
        "<project>\n<modelVersion>4.0.0</modelVersion>\n<groupId>campanile</groupId>\n\
         <artifactId>kafka</artifactId>\n<version>1</version>\n<dependencies>\n{}</dependencies>\n\
         </project>\n",
        dependencies.concat()
    )
}
