//! Child processes exit with the test in all circumstances.

#![expect(clippy::unwrap_used, reason = "test helpers")]

use campanile_test::{Process, RedisServer, eventually, free_port};
use rustix::process::{Pid, test_kill_process};
use std::env;
use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs a single test of this test binary again, with a variable from which that test recognizes
/// the rerun.
fn rerun_test(test: &str, variable: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(variable, "1").stdin(Stdio::null());
    command
}

fn is_running(pid: u32) -> bool {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    test_kill_process(pid).is_ok()
}

fn spawn_sleep(folder: &tempfile::TempDir) -> Process {
    Process::spawn(Command::new("sleep").arg("600"), folder.path().join("log")).unwrap()
}

#[test]
fn dropped_process_is_killed_and_reaped() {
    let folder = tempfile::tempdir().unwrap();
    let process = spawn_sleep(&folder);
    let pid = process.pid();
    assert!(is_running(pid));
    drop(process);
    assert!(!is_running(pid));
}

#[test]
fn process_output_is_logged() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    fs::write(&log, "of an earlier process\n").unwrap();
    let mut echo = Command::new("sh");
    echo.args(["-c", "pwd; echo $BELL; echo wrong >&2; exit 3"])
        .env("BELL", "rung")
        .current_dir("/");
    let mut process = Process::spawn(&echo, &log).unwrap();
    let status = process.wait(TIMEOUT).unwrap().expect("sh exits on its own");
    assert_eq!(status.code(), Some(3));
    assert_eq!(process.log().unwrap(), "/\nrung\nwrong\n");
}

#[test]
fn missing_program_fails_spawn() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Command::new("campanile-no-such-program");
    let error = Process::spawn(&missing, folder.path().join("log")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn paused_process_is_stopped_and_can_be_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = spawn_sleep(&folder);
    let state = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.chars().next().unwrap()
    };
    for _ in 0..20 {
        process.pause().unwrap();
        assert_eq!(state(process.pid()), 'T');
        process.resume().unwrap();
        assert_ne!(state(process.pid()), 'T');
    }
    process.pause().unwrap();
    assert_eq!(process.kill().unwrap().signal(), Some(9));
    assert!(process.pause().is_err());
    assert!(process.resume().is_err());
}

#[test]
fn terminate_sends_sigterm_first() {
    let folder = tempfile::tempdir().unwrap();
    let mut polite = Command::new("sh");
    polite.args(["-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done"]);
    let mut process = Process::spawn(&polite, folder.path().join("log")).unwrap();
    eventually(TIMEOUT, || (process.log().unwrap() == "ready\n").then_some(()))
        .expect("the trap is set");
    assert_eq!(process.terminate().unwrap().code(), Some(7));
    assert_eq!(process.terminate().unwrap().code(), Some(7));
}

/// The end of a thread must not stop the server, but the end of the process must, even a violent
/// one.
#[cfg(target_os = "linux")]
#[test]
fn server_outlives_its_thread_but_not_the_process() {
    const ABORT: &str = "CAMPANILE_TEST_ABORT";
    if env::var_os(ABORT).is_some() {
        let redis = std::thread::spawn(|| RedisServer::start().unwrap()).join().unwrap();
        redis.cli(&["PING"]).unwrap();
        println!("\nport {}", redis.port());
        std::process::abort();
    }
    let test = "server_outlives_its_thread_but_not_the_process";
    // An aborted process leaves its files behind.
    let folder = tempfile::tempdir().unwrap();
    let output = rerun_test(test, ABORT).env("TMPDIR", folder.path()).output().unwrap();
    assert_eq!(output.status.signal(), Some(6), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let port: u16 =
        printed.lines().find_map(|line| line.strip_prefix("port ")).unwrap().parse().unwrap();
    eventually(TIMEOUT, || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err().then_some(()))
        .expect("the server is killed");
}

#[test]
fn missing_server_error_names_install_command() {
    const PATH: &str = "CAMPANILE_TEST_NO_PATH";
    if env::var_os(PATH).is_some() {
        let redis = RedisServer::start().unwrap_err();
        let kafka = campanile_test::KafkaServer::start().unwrap_err();
        println!("{redis}\n{kafka}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let test = "missing_server_error_names_install_command";
    let output = rerun_test(test, PATH).env("PATH", folder.path()).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("`apt-get install redis-server`"), "{printed}");
    assert!(printed.contains("`apt-get install default-jre-headless`"), "{printed}");
    assert!(printed.contains("`cargo xtask install`"), "{printed}");
}

#[test]
fn missing_downloads_error_names_install_command() {
    const CACHE: &str = "CAMPANILE_TEST_NO_CACHE";
    if env::var_os(CACHE).is_some() {
        println!("{}", campanile_test::KafkaServer::start().unwrap_err());
        println!("{}", campanile_test::DynamoDbServer::start().unwrap_err());
        println!("{}", RedisServer::builder().valkey().start().unwrap_err());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = rerun_test("missing_downloads_error_names_install_command", CACHE)
        .env_remove("CAMPANILE_DYNAMODB_LIBS")
        .env_remove("CAMPANILE_KAFKA_LIBS")
        .env_remove("CAMPANILE_VALKEY_SERVER")
        .env("CAMPANILE_CACHE", folder.path())
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    for missing in ["Kafka's jars", "DynamoDB Local's jars", "valkey-server"] {
        let mut lines = printed.lines();
        let error = lines.find(|line| line.contains(missing)).expect(missing);
        assert!(error.contains("`cargo xtask install`"), "{error}");
        assert!(error.contains(folder.path().to_str().unwrap()), "{error}");
    }
}

#[test]
fn taken_port_is_reported_as_port_taken() {
    let port = free_port().unwrap();
    let _rival = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    let error = RedisServer::builder().port(port).start().unwrap_err();
    assert!(
        matches!(error, campanile_test::ServerError::PortTaken { port: taken, .. } if taken == port),
        "{error}"
    );
}
