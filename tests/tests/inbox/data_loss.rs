//! A failover to a replica that has not received the last bookings.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use campanile_test::eventually;
use campanile_test::history::{Cause, Event, FaultKind, Partition, Position};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::{Offset, TopicPartitionList};

use crate::{Fixture, GROUP, PARTITIONS, TIMEOUT, TOPIC, booking};

const KEPT: usize = 200;
const LOST: usize = 100;

#[test]
fn group_set_back_books_what_a_failover_has_lost() {
    // No consumer is killed, so nothing has to end soon.
    let options = &["lock_ms=20000", "session.timeout.ms=20000"];
    let mut fixture = Fixture::start(Duration::from_secs(20), options);
    let mut replica = fixture.postgres.replica().unwrap();
    let addresses = [fixture.postgres.addr(), replica.addr()].map(|address| address.to_string());
    let url = format!("postgres://postgres@{}/postgres", addresses.join(","));
    let bookings = |ids: Range<usize>| ids.map(|id| booking(id, id as i32 % PARTITIONS));

    let member = fixture.start_member(&url);
    fixture.produce(bookings(0..KEPT / 2));
    fixture.wait_until_committed();
    // The group is set back to here, which is before the loss.
    let (start, timestamp) = (committed(&fixture), unix_millis());
    fixture.produce(bookings(KEPT / 2..KEPT));
    fixture.wait_until_committed();
    let wait_for = |query: &str, answer: &str| {
        let has_answer = || replica.psql(query).is_ok_and(|it| it == answer).then_some(());
        eventually(TIMEOUT, has_answer).unwrap_or_else(|| panic!("not {answer}: {query}"));
    };
    wait_for("SELECT count(*) FROM ledger", &KEPT.to_string());
    let lost_from = fixture.history.recorder.now();
    replica.psql("ALTER SYSTEM SET primary_conninfo = ''").unwrap();
    replica.psql("SELECT pg_reload_conf()").unwrap();
    let replicas = || {
        let count = fixture.psql("SELECT count(*) FROM pg_stat_replication");
        (count == "0").then_some(())
    };
    eventually(TIMEOUT, replicas).expect("the replica is cut off");
    fixture.produce(bookings(KEPT..KEPT + LOST));
    fixture.wait_until_committed();
    assert_eq!(fixture.psql("SELECT count(*) FROM ledger"), (KEPT + LOST).to_string());
    member.stop();

    fixture.postgres.kill().unwrap();
    replica.psql("SELECT pg_promote()").unwrap();
    wait_for("SELECT pg_is_in_recovery()", "f");
    std::mem::swap(&mut fixture.postgres, &mut replica);
    assert_eq!(fixture.psql("SELECT count(*) FROM ledger"), KEPT.to_string());
    let recorder = &fixture.history.recorder;
    recorder.fault(lost_from, Some(recorder.now()), FaultKind::StoreLostWrites);

    set_back(&fixture, timestamp);
    assert_eq!(committed(&fixture), start);
    let member = fixture.start_member(&url);
    fixture.wait_until_committed();
    member.stop();

    recorder.record_commits(&fixture.kafka.consumer_config(GROUP), GROUP).unwrap();
    fixture.record_ledger();
    fixture.record_entries(KEPT + LOST);
    let mut report = fixture.history.judge(&[Cause::StoreLostWrites]);
    fixture.check_sums(KEPT + LOST, &mut report);
    let verdict = report.finish("data loss", format_args!("the last {LOST} bookings lost"));
    assert_eq!(verdict.reruns.len(), LOST);
}

fn unix_millis() -> i64 {
    #[expect(clippy::disallowed_methods, reason = "the timestamps of records are system times")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

fn partitions() -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    list.add_partition_range(TOPIC, 0, PARTITIONS - 1);
    list
}

fn committed(fixture: &Fixture) -> Vec<(i32, Offset)> {
    let consumer: BaseConsumer = fixture.kafka.consumer_config(GROUP).create().unwrap();
    let committed = consumer.committed_offsets(partitions(), TIMEOUT).unwrap();
    committed.elements().iter().map(|it| (it.partition(), it.offset())).collect()
}

/// Does what `kafka-consumer-groups --reset-offsets --to-datetime` does.
fn set_back(fixture: &Fixture, timestamp: i64) {
    let consumer: BaseConsumer = fixture.kafka.consumer_config(GROUP).create().unwrap();
    let mut times = partitions();
    times.set_all_offsets(Offset::Offset(timestamp)).unwrap();
    let offsets = consumer.offsets_for_times(times, TIMEOUT).unwrap();
    let recorder = &fixture.history.recorder;
    for element in offsets.elements() {
        let Offset::Offset(offset) = element.offset() else { panic!("{element:?}") };
        let partition = Partition { topic: TOPIC.into(), number: element.partition() };
        recorder.record(&Event::Reset(Position { at: recorder.now(), partition, offset }));
    }
    consumer.commit(&offsets, CommitMode::Sync).unwrap();
}
