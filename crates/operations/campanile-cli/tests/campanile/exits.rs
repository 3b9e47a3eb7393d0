//! Exit codes, and what is printed.

use std::io::Read;
use std::process::Stdio;

use campanile_test::free_port;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::{Offset, TopicPartitionList};

use crate::support::{KAFKA, Scene};
use crate::{campanile, finish, redrive};

#[test]
fn wrong_arguments_exit_with_2_and_echo_no_secret() {
    for (arguments, why) in [
        (&["redrive"][..], "<DEAD-LETTER-TOPIC>"),
        (&["redrive", "t"], "--brokers or set CAMPANILE_BROKERS"),
        (&["redrive", "t", "--brokers", "b:1"], "set CAMPANILE_STORE"),
        (&["redrive", "t", "--brokers", "b:1", "--store", "mysql://db"], "redis://"),
        (
            &["redrive", "t", "--brokers", "b:1", "--store", "redis://:s3cret@h"],
            "set CAMPANILE_STORE",
        ),
        (
            &["redrive", "t", "--brokers", "b:1", "--kafka", "sasl.password=s3cret"],
            "CAMPANILE_KAFKA_SASL_PASSWORD",
        ),
        (
            &["redrive", "t", "--brokers", "b:1", "--store", "postgres://h/app?password=s3cret"],
            "set CAMPANILE_STORE",
        ),
        (
            &["redrive", "t", "--brokers", "b:1", "--kafka", "sasl.password:s3cret"],
            "--kafka: expected NAME=VALUE",
        ),
        (
            &["redrive", "t", "--brokers", "b:1", "--kafka", "sasl.pasword=s3cret"],
            "librdkafka has no setting `sasl.pasword`",
        ),
        (&["redrive", "t", "--brokers", "b:1", "--kafka-file", "/nowhere"], "/nowhere"),
        (&["redrive", "t", "--since", "yesterday"], "--since"),
    ] {
        let (code, stdout, stderr) = finish(campanile(arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(why), "{arguments:?}: {stderr}");
        assert!(!stderr.contains("s3cret") && stdout.is_empty(), "{stdout}{stderr}");
    }
}

#[test]
fn key_variables_are_checked_unless_an_option_says_where_the_key_is() {
    let explain = ["explain", "t/0@0", "--namespace", "n", "--brokers", "b:1"];
    let both = [("CAMPANILE_KEY_HEADER", "id"), ("CAMPANILE_KEY_POINTER", "/id")];
    let invalid = [("CAMPANILE_KEY_POINTER", "id")];
    for (variables, arguments, why) in [
        (&both[..], &[][..], "CAMPANILE_KEY_HEADER and CAMPANILE_KEY_POINTER exclude"),
        (&invalid, &[], "CAMPANILE_KEY_POINTER: a JSON pointer begins with /"),
        // The store is the only setting that is missing.
        (&both, &["--key-header", "id"], "set CAMPANILE_STORE"),
        (&invalid, &["--key-record"], "set CAMPANILE_STORE"),
        (&[], &["--key-record", "--key-coordinates"], "cannot be used with"),
    ] {
        let mut command = campanile(&explain);
        command.args(arguments).envs(variables.iter().copied());
        let (code, _, stderr) = finish(command);
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(why), "{arguments:?}: {stderr}");
    }
}

#[test]
fn help_shows_exit_codes_and_no_values_of_the_environment() {
    let mut help = campanile(&["redrive", "--help"]);
    help.env("CAMPANILE_STORE", "redis://:s3cret@h");
    let (code, stdout, _) = finish(help);
    assert_eq!(code, Some(0));
    assert!(stdout.contains("--dry-run") && !stdout.contains("s3cret"), "{stdout}");
    let (code, stdout, _) = finish(campanile(&["--help"]));
    assert!(code == Some(0) && stdout.contains("130  stopped"), "{stdout}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unavailable_servers_exit_with_3() {
    let scene = Scene::new("cli-away", 1).await;
    let away = format!("127.0.0.1:{}", free_port().unwrap());
    let mut kafka_away = redrive(&scene, &["--timeout", "5s"]);
    kafka_away.env("CAMPANILE_BROKERS", &away);
    let (code, _, stderr) = finish(kafka_away);
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains(&away), "{stderr}");
    let mut store_away = redrive(&scene, &["--timeout", "5s"]);
    store_away.env("CAMPANILE_STORE", format!("redis://:s3cret@{away}"));
    let (code, _, stderr) = finish(store_away);
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains(&away) && !stderr.contains("s3cret"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exit_code_says_whether_letters_need_attention() {
    let scene = Scene::new("cli-codes", 1).await;
    KAFKA.producer().produce_all(scene.failed_letters(3).await).unwrap();
    let (code, stdout, stderr) = finish(redrive(&scene, &["--dry-run"]));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("3  would be reopened and produced back"), "{stdout}");
    let reason = "3  exhausted: card of p-# declined  (cli-codes.dead/0@0)";
    assert!(stdout.contains(reason), "{stdout}");
    assert!(scene.produced().is_empty());

    let (code, stdout, stderr) = finish(redrive(&scene, &["--json"]));
    assert_eq!(code, Some(0), "{stderr}");
    // The store is part of the name.
    let group = "redrive of cli-codes.dead, consumer group campanile-redrive.cli-codes.dead.";
    assert!(stderr.starts_with(group) && stderr.lines().count() == 1, "{stderr}");
    let lines: Vec<serde_json::Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, letters) = lines.split_last().unwrap();
    assert_eq!(summary["summary"]["reopened"], 3);
    assert_eq!(letters.len(), 3);
    assert_eq!(letters[0]["letter"], "cli-codes.dead/0@0");
    assert_eq!((&letters[0]["outcome"], &letters[0]["key"]), (&"reopened".into(), &"p-0".into()));

    KAFKA.producer().produce(scene.keyless_letter("k-1", "undecodable")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit");
    let (code, stdout, stderr) = finish(redrive(&scene, &["--audit", audit.to_str().unwrap()]));
    assert_eq!(code, Some(1), "{stderr}");
    let audited = std::fs::read_to_string(audit).unwrap();
    assert!(audited.contains(r#""letter":"cli-codes.dead/0@3""#), "{audited}");
    let parked = "parked: cli-codes.dead/0@3 (from cli-codes/0@7): held no lock (undecodable)";
    assert!(stdout.contains(parked), "{stdout}");
    assert!(
        stdout.contains("0 reopened, 0 only produced, 0 skipped, 0 deferred, 1 parked"),
        "{stdout}"
    );
    assert!(stdout.contains("--group NEW-NAME handles them again"), "{stdout}");
    assert!(stdout.contains("handled by earlier runs: 3 letters at most; --group"), "{stdout}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_their_topic_soon_deletes_are_warned_of() {
    let scene = Scene::new("cli-old", 1).await;
    KAFKA.create_topic("cli-old-kept", 1, &[("retention.ms", "604800000")]).unwrap();
    let letters = [("p-1", "cli-old-kept"), ("p-2", "cli-old-kept"), ("p-3", "cli-old")];
    let letter = |(payload, topic)| scene.letter_of(topic, payload, "undecodable");
    KAFKA.producer().produce_all(letters.map(letter)).unwrap();
    let (code, stdout, stderr) = finish(redrive(&scene, &["--without-key", "--dry-run"]));
    assert!(code == Some(0) && stdout.contains("3  would only be produced back"), "{stdout}");
    let warnings: Vec<_> = stderr.lines().filter(|line| line.contains("WARN")).collect();
    let [warning] = warnings[..] else { panic!("{stderr}") };
    let what = "records are older than their topic keeps them";
    assert!(warning.contains(what) && warning.contains("cli-old-kept"), "{warning}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_deleted_before_the_group_handled_them_are_warned_of() {
    let scene = Scene::new("cli-deleted", 1).await;
    let mut letters = scene.failed_letters(6).await;
    let later = letters.split_off(3);
    KAFKA.producer().produce_all(letters).unwrap();
    let warnings = |arguments: &[&str]| {
        let (code, _, stderr) = finish(redrive(&scene, arguments));
        assert_eq!(code, Some(0), "{stderr}");
        let is_warning = |line: &&str| line.contains("has deleted letters that this group");
        stderr.lines().filter(is_warning).map(str::to_owned).collect::<Vec<_>>()
    };
    let delete_before = async |offset| {
        let admin: AdminClient<DefaultClientContext> = scene.kafka().create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&scene.dead, 0, Offset::Offset(offset)).unwrap();
        admin.delete_records(&list, &AdminOptions::new()).await.unwrap();
    };
    assert_eq!(warnings(&[]), [""; 0]);
    KAFKA.producer().produce_all(later).unwrap();
    delete_before(5).await;
    for arguments in [&["--dry-run"][..], &[]] {
        let warnings = warnings(arguments);
        assert!(warnings.len() == 1 && warnings[0].contains("deleted=2"), "{warnings:?}");
    }
    // The group has handled the rest by now.
    delete_before(6).await;
    assert_eq!(warnings(&["--dry-run"]), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redrive_without_a_reader_handles_all_letters_unless_output_is_the_audit() {
    let scene = Scene::new("cli-unread", 1).await;
    let letters = scene.failed_letters(3).await.into_iter();
    let letters = letters.chain([scene.keyless_letter("k-1", "undecodable")]);
    KAFKA.producer().produce_all(letters).unwrap();
    let unread = |arguments: &[&str]| {
        let mut command = redrive(&scene, arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        (child.wait().unwrap().code(), stderr)
    };
    let (code, stderr) = unread(&[]);
    assert_eq!(code, Some(1), "{stderr}");
    // The offsets are committed.
    let (code, stdout, stderr) = finish(redrive(&scene, &["--dry-run", "--json"]));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains(r#""skipped":[]"#) && stdout.contains(r#""parked":[]"#), "{stdout}");

    let (code, stderr) = unread(&["--json", "--group", "cli-unread-2"]);
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("cannot write the audit"), "{stderr}");
}
