//! A record that kills its process, and processes that die while giving the record up, on a real
//! Kafka and a real Redis.
#![expect(clippy::unwrap_used, reason = "test helpers")]

#[path = "../support/group.rs"]
mod group;
mod scenario;
#[path = "../support/store.rs"]
mod store;

use std::fs;
use std::ops::Deref;
use std::sync::LazyLock;
use std::time::Duration;

use campanile_test::{KafkaServer, eventually};

use scenario::{LetterCopy, Scenario, header};

/// Shared, because it takes a few seconds to start. A `static` is never dropped; the server's
/// process exits with ours.
static KAFKA: LazyLock<KafkaServer> = LazyLock::new(|| KafkaServer::start().unwrap());

const TIMEOUT: Duration = Duration::from_secs(90);

/// A letter with its payload is larger than this, in bytes, and no other request of a client is.
const MIN_LETTER_BYTES: u64 = 10_000;

#[test]
fn record_that_kills_its_process_is_dead_lettered_after_attempts() {
    const ATTEMPTS: u32 = 3;
    let mut scenario = scenario("kills", ATTEMPTS);
    for _ in 0..ATTEMPTS {
        scenario.run_until_crash("handler");
    }
    let letters = scenario.run_to_completion();
    let runs = scenario.runs("poison");
    assert_eq!(runs.iter().map(|run| run.attempt).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(runs.is_sorted_by(|one, next| one.token < next.token), "{runs:?}");
    let [letter] = &letters[..] else { panic!("{} letters", letters.len()) };
    assert_eq!(header(letter, "campanile-cause"), b"exhausted");
    assert_eq!(header(letter, "campanile-attempts"), b"3");
    let copy = LetterCopy::of(letter);
    assert_eq!((copy.give_ups, copy.truncated), (1, false));
    assert!(runs[2].token < copy.token, "given up under a separate lock");
}

#[test]
fn crash_before_publication_leaves_it_to_next_process() {
    let mut scenario = scenario("before", 1);
    scenario.run_until_crash("unpublished");
    assert_eq!(finish_and_read_copies(&mut scenario), [(1, false)]);
}

#[test]
fn crash_with_give_up_lock_leaves_letter_without_payload() {
    let mut scenario = scenario("granted", 1);
    scenario.run_until_crash("handler");
    scenario.run_until_crash("unpublished");
    // The payload could be what cannot be published.
    assert_eq!(finish_and_read_copies(&mut scenario), [(2, true)]);
}

#[test]
fn crash_before_acknowledgement_loses_no_letter() {
    // A separate server, because it is paused.
    let kafka = Box::new(KafkaServer::start().unwrap());
    let mut scenario = Scenario::new(kafka, "sent", 1);
    let mut process = scenario.start("sent");
    wait_for("the last attempt starts", || !scenario.runs("poison").is_empty());
    scenario.kafka.pause().unwrap();
    fs::write(scenario.folder.path().join("go"), "").unwrap();
    // The letter is sent, but the broker has not even read it.
    let port = scenario.kafka.port();
    wait_for("the letter is sent", || {
        unread_bytes(port).into_iter().any(|bytes| bytes > MIN_LETTER_BYTES)
    });
    process.kill().unwrap();
    scenario.kafka.resume().unwrap();
    let copies = finish_and_read_copies(&mut scenario);
    assert!(matches!(copies[..], [.., (1, false)]), "{copies:?}");
}

#[test]
fn crash_before_give_up_leaves_recognizable_copy() {
    let mut scenario = scenario("acknowledged", 1);
    scenario.run_until_crash("acknowledged");
    assert_eq!(finish_and_read_copies(&mut scenario), [(0, false), (1, false)]);
}

#[test]
fn crash_under_give_up_lock_omits_payload_of_copy() {
    let mut scenario = scenario("again", 1);
    scenario.run_until_crash("handler");
    scenario.run_until_crash("acknowledged");
    assert_eq!(finish_and_read_copies(&mut scenario), [(1, false), (2, true)]);
}

#[test]
fn crash_before_answer_to_give_up_leaves_one_letter() {
    let mut scenario = scenario("given-up", 1);
    scenario.run_until_crash("given-up");
    assert_eq!(finish_and_read_copies(&mut scenario), [(0, false)]);
}

#[test]
fn crash_between_give_up_and_commit_leaves_one_letter() {
    let mut scenario = scenario("settled", 1);
    scenario.run_until_crash("settled");
    assert_eq!(finish_and_read_copies(&mut scenario), [(0, false)]);
}

fn scenario(topic: &'static str, attempts: u32) -> Scenario<&'static KafkaServer> {
    Scenario::new(&*KAFKA, topic, attempts)
}

/// Reads what distinguishes copies of the dead letter: the number of give-ups, and whether the
/// payload is omitted. Checks that tokens rise from copy to copy and that the handler started once.
fn finish_and_read_copies<K: Deref<Target = KafkaServer>>(
    scenario: &mut Scenario<K>,
) -> Vec<(u32, bool)> {
    let copies: Vec<_> = scenario.run_to_completion().iter().map(LetterCopy::of).collect();
    assert_eq!(scenario.runs("poison").len(), 1, "a give-up is not an attempt");
    assert!(copies.is_sorted_by(|one, next| one.token < next.token), "{copies:?}");
    copies.iter().map(|copy| (copy.give_ups, copy.truncated)).collect()
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    eventually(TIMEOUT, || condition().then_some(()))
        .unwrap_or_else(|| panic!("timed out after {TIMEOUT:?} waiting until {what}"));
}

/// Reads how many bytes the server has not yet read from each connection to this port, according
/// to Linux.
fn unread_bytes(port: u16) -> Vec<u64> {
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
