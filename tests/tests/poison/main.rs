//! A record that kills its process, and processes that die while burying the record, on a real
//! Kafka and a real Redis.
#![expect(clippy::unwrap_used, reason = "test helpers")]

#[path = "../support/group.rs"]
mod group;
mod scene;
#[path = "../support/store.rs"]
mod store;

use std::fs;
use std::ops::Deref;
use std::sync::LazyLock;
use std::time::Duration;

use campanile_test::{KafkaServer, eventually};

use scene::{Copy, Scene, header};

/// Shared, because it takes a few seconds to start. A `static` is never dropped; the server's
/// process exits with ours.
static KAFKA: LazyLock<KafkaServer> = LazyLock::new(|| KafkaServer::start().unwrap());

const LONG: Duration = Duration::from_secs(30);

/// A letter with its payload is larger than this, in bytes, and no other request of a client is.
const LETTER: u64 = 10_000;

#[test]
fn a_record_that_kills_its_process_is_begun_so_often_as_it_has_attempts_and_then_dead_lettered() {
    const ATTEMPTS: u32 = 3;
    let mut scene = scene("kills", ATTEMPTS);
    for _ in 0..ATTEMPTS {
        scene.dies("handler");
    }
    let letters = scene.comes_to_its_end();
    let runs = scene.runs("poison");
    assert_eq!(runs.iter().map(|run| run.attempt).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(runs.is_sorted_by(|one, next| one.token < next.token), "{runs:?}");
    let [letter] = &letters[..] else { panic!("{} letters", letters.len()) };
    assert_eq!(header(letter, "campanile-cause"), b"exhausted");
    assert_eq!(header(letter, "campanile-attempts"), b"3");
    let copy = Copy::of(letter);
    assert_eq!((copy.burials, copy.truncated), (1, false));
    assert!(runs[2].token < copy.token, "buried under a separate lock");
}

#[test]
fn a_crash_before_the_publication_leaves_it_to_the_next_process() {
    let mut scene = scene("before", 1);
    scene.dies("failed");
    assert_eq!(copies(&mut scene), [(1, false)]);
}

#[test]
fn a_crash_with_a_burial_lock_leaves_a_letter_without_its_payload_to_the_next_process() {
    let mut scene = scene("granted", 1);
    scene.dies("handler");
    scene.dies("granted");
    // The payload could be what cannot be published.
    assert_eq!(copies(&mut scene), [(2, true)]);
}

#[test]
fn a_crash_before_the_acknowledgement_loses_no_letter() {
    // A separate server, because it is paused.
    let kafka = Box::new(KafkaServer::start().unwrap());
    let mut scene = Scene::new(kafka, "sent", 1);
    let mut process = scene.start("sent");
    wait_for("the last attempt starts", || !scene.runs("poison").is_empty());
    scene.kafka.pause().unwrap();
    fs::write(scene.folder.path().join("go"), "").unwrap();
    // The letter is sent, but the broker has not even read it.
    let port = scene.kafka.port();
    wait_for("the letter is sent", || unread(port).into_iter().any(|bytes| bytes > LETTER));
    process.kill().unwrap();
    scene.kafka.resume().unwrap();
    let copies = copies(&mut scene);
    assert!(matches!(copies[..], [.., (1, false)]), "{copies:?}");
}

#[test]
fn a_crash_between_the_acknowledgement_and_the_rejection_leaves_a_copy_that_can_be_told() {
    let mut scene = scene("acknowledged", 1);
    scene.dies("acknowledged");
    assert_eq!(copies(&mut scene), [(0, false), (1, false)]);
}

#[test]
fn a_crash_between_the_two_under_a_burial_lock_leaves_a_copy_without_its_payload() {
    let mut scene = scene("again", 1);
    scene.dies("handler");
    scene.dies("acknowledged");
    assert_eq!(copies(&mut scene), [(1, false), (2, true)]);
}

#[test]
fn a_crash_before_the_answer_to_the_rejection_leaves_one_letter() {
    let mut scene = scene("rejected", 1);
    scene.dies("rejected");
    assert_eq!(copies(&mut scene), [(0, false)]);
}

#[test]
fn a_crash_between_the_rejection_and_the_commit_leaves_one_letter() {
    let mut scene = scene("settled", 1);
    scene.dies("settled");
    assert_eq!(copies(&mut scene), [(0, false)]);
}

fn scene(topic: &'static str, attempts: u32) -> Scene<&'static KafkaServer> {
    Scene::new(&*KAFKA, topic, attempts)
}

/// Returns how a reader distinguishes copies of the dead letter: the number of burials, and whether
/// the payload is omitted. Checks that tokens rise from copy to copy and that the handler started
/// once.
fn copies<K: Deref<Target = KafkaServer>>(scene: &mut Scene<K>) -> Vec<(u32, bool)> {
    let copies: Vec<_> = scene.comes_to_its_end().iter().map(Copy::of).collect();
    assert_eq!(scene.runs("poison").len(), 1, "a burial is not an attempt");
    assert!(copies.is_sorted_by(|one, next| one.token < next.token), "{copies:?}");
    copies.iter().map(|copy| (copy.burials, copy.truncated)).collect()
}

fn wait_for(what: &str, so: impl Fn() -> bool) {
    eventually(LONG, || so().then_some(()))
        .unwrap_or_else(|| panic!("timed out after {LONG:?} waiting until {what}"));
}

/// Reads how many bytes the server has not yet read from each connection to this port, according
/// to Linux.
fn unread(port: u16) -> Vec<u64> {
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap());
    let local = format!(":{port:04X}");
    let unread = |line: &str| {
        // Number, local and remote address, state, and the send and receive queues.
        let mut fields = line.split_whitespace().skip(1);
        let queues = fields.next()?.ends_with(&local).then(|| fields.nth(2))??;
        u64::from_str_radix(queues.split(':').nth(1)?, 16).ok()
    };
    tables.iter().flat_map(|table| table.lines().filter_map(unread)).collect()
}
