//! The verb `doctor`: its arguments, its output and its exit codes.

#![expect(clippy::unwrap_used, reason = "test helpers")]

use std::process::{Command, Output};

use campanile_test::free_port;

fn run(arguments: &[&str]) -> Output {
    run_with(arguments, &[])
}

/// Runs the verb with these variables, and without others that are its settings.
fn run_with(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CAMPANILE_") {
            command.env_remove(name);
        }
    }
    command.arg("doctor").args(arguments).env("DOCTOR_TEST_PASSWORD", "s3cret");
    command.envs(variables.iter().copied()).output().unwrap()
}

/// Writes the settings of a deployment without running servers.
fn settings() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let [kafka, redis] = [free_port().unwrap(), free_port().unwrap()];
    let text = format!(
        r#"
        topics = ["payments"]
        [kafka]
        "bootstrap.servers" = "127.0.0.1:{kafka}"
        "group.id" = "billing"
        [layer]
        namespace = "billing.payments"
        [redis]
        url = "redis://app:${{DOCTOR_TEST_PASSWORD}}@127.0.0.1:{redis}"
        connect_timeout = "10ms"
        "#
    );
    std::fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn findings_fail_the_command_unless_accepted() {
    let file = settings();
    let file = file.path().to_str().unwrap();
    let output = run(&[file, "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let kinds: Vec<_> =
        report["findings"].as_array().unwrap().iter().map(|it| &it["kind"]).collect();
    assert_eq!(kinds, ["brokers-unreachable", "store-unreachable"]);

    let accepted = ["--accept", "brokers-unreachable", "--accept", "store-unreachable"];
    let output = run(&[&[file][..], &accepted].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("accepted brokers-unreachable"), "{text}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!text.contains("s3cret") && !errors.contains("s3cret"), "{text}{errors}");
}

#[test]
fn wrong_arguments_exit_with_two_and_say_what_is_wrong() {
    let file = settings();
    let file = file.path().to_str().unwrap();
    let deployment = ["--group", "g", "--topic", "t", "--namespace", "n"];
    let brokers = ["--brokers", "b:1"];
    for (arguments, expected) in [
        (&[][..], "--group"),
        (&["no-such-file.toml"], "no-such-file.toml"),
        (&[file, "--accept", "no-such-finding"], "no finding `no-such-finding`"),
        (&[file, "--observe", "1"], "--observe"),
        (&[file, "--group", "g"], "cannot be used with"),
        (&[file, "--namespace", "n"], "cannot be used with"),
        (&[file, "--brokers", "b:1"], "cannot be used with"),
        (&deployment, "CAMPANILE_BROKERS"),
        (&[&deployment[..4], &brokers].concat(), "CAMPANILE_NAMESPACE"),
        (&[&deployment[..], &brokers].concat(), "CAMPANILE_STORE"),
    ] {
        let output = run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}

#[test]
fn file_replaces_the_variables_of_the_environment() {
    let file = settings();
    let variables = [
        ("CAMPANILE_BROKERS", "other:1"),
        ("CAMPANILE_NAMESPACE", "other"),
        ("CAMPANILE_STORE_CA", "no-such-file"),
        ("CAMPANILE_STORE_CERTIFICATE", "no-such-file"),
        ("CAMPANILE_STORE_KEY", "no-such-file"),
    ];
    let output = run_with(&[file.path().to_str().unwrap()], &variables);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn namespace_is_read_from_the_environment_without_a_file() {
    let arguments = ["--group", "g", "--topic", "t", "--brokers", "b:1"];
    let output = run_with(&arguments, &[("CAMPANILE_NAMESPACE", "billing")]);
    let error = String::from_utf8(output.stderr).unwrap();
    // The store is the only setting that is missing.
    assert!(output.status.code() == Some(2) && error.contains("CAMPANILE_STORE"), "{error}");
}
