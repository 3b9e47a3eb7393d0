//! The table of situations.

use std::time::Duration;

use campanile_admin::entries::RepairPlan;
use campanile_admin::explain::{Cause, KeySource};
use campanile_core::{Coordinates, Operation, Reply};
use campanile_test::{Message, eventually};
use futures_util::FutureExt;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

use super::{BUSY, HEADER, IDLE, KAFKA, Situation, TIMEOUT, TOPIC_ID, TRANSACTIONAL, kafka_config};
use crate::planter::{DAY, HOUR, Planter, TTL};

const NOW: Duration = Duration::ZERO;

/// How long the broker keeps a transaction open: longer than the test takes.
const OPEN_MILLIS: &str = "600000";

pub(super) fn all() -> Vec<Situation> {
    let mut all = Vec::new();
    let mut add = |name, cause, complete: fn(Situation) -> Situation| {
        all.push(complete(Situation::new(all.len(), name, cause)));
    };
    add_kafka(&mut add);
    add_keys(&mut add);
    add_without_entry(&mut add);
    add_processing(&mut add);
    add_given_up(&mut add);
    add_retrying(&mut add);
    add_completed(&mut add);
    add_unreadable(&mut add);
    all
}

type Add<'a> = &'a mut dyn FnMut(&'static str, Cause, fn(Situation) -> Situation);

/// The record cannot be read, or not yet.
fn add_kafka(add: Add<'_>) {
    add("behind the last record", Cause::BeyondEnd, |s| s.offset(2));
    add("far behind the last record", Cause::BeyondEnd, |s| s.offset(1_000_000));
    add("empty partition", Cause::BeyondEnd, |mut s| {
        s.records.clear();
        s.offset(0).committed(None)
    });
    add("deleted", Cause::BeforeStart, |s| {
        delete_first_record("deleted");
        s.in_topic("deleted").offset(0)
    });
    add("first record that is not deleted", Cause::NoEntry, |s| {
        delete_first_record("shortened");
        s.in_topic("shortened").offset(1)
    });
    add("compacted away", Cause::NoRecord, |s| {
        compact("compacted");
        s.in_topic("compacted").offset(0)
    });
    add("marker of a commit", Cause::NoRecord, |s| {
        transactions("marker", &[true, true], false);
        s.in_topic("marker").offset(1)
    });
    add("marker at the end", Cause::NoRecord, |s| {
        transactions("marker.end", &[true], false);
        s.in_topic("marker.end").offset(1)
    });
    add("marker of an abort", Cause::NoRecord, |s| {
        transactions("marker.abort", &[false, true], false);
        s.in_topic("marker.abort").offset(1)
    });
    add("committed transaction", Cause::NoEntry, |s| {
        transactions("transaction", &[true], false);
        s.in_topic("transaction").offset(0)
    });
    add("aborted transaction", Cause::Aborted, |s| {
        transactions("aborted", &[false, true], false);
        s.in_topic("aborted").offset(0)
    });
    add("aborted transaction at the end", Cause::Aborted, |s| {
        transactions("aborted.end", &[true, false], false);
        s.in_topic("aborted.end").offset(2)
    });
    add("open transaction", Cause::OpenTransaction, |s| {
        transactions("open", &[true], true);
        s.in_topic("open").offset(2)
    });
    add("behind an open transaction", Cause::OpenTransaction, |s| {
        transactions("open.before", &[], true);
        let behind = Message::to("open.before").header(HEADER, "p-1");
        KAFKA.producer().produce(behind).unwrap();
        s.in_topic("open.before").offset(1)
    });
}

fn add_keys(add: Add<'_>) {
    add("no header", Cause::NoKey, |s| s.record(|record| record));
    add("another header", Cause::NoKey, |s| s.record(|record| record.header("other", "p-1")));
    add("empty header", Cause::NoKey, |s| s.record(|record| record.header(HEADER, "")));
    add("null header", Cause::NoKey, |s| s.record(|record| record.null_header(HEADER)));
    add("null header after a key", Cause::NoKey, |s| {
        s.record(|record| record.header(HEADER, "p-1").null_header(HEADER))
    });
    add("no Kafka key", Cause::NoKey, |s| s.key(KeySource::RecordKey));
    add("no field", Cause::NoKey, |s| s.record(|record| record.payload("{}")).key(id_field()));
    add("empty field", Cause::NoKey, |s| {
        s.record(|record| record.payload(r#"{"id":""}"#)).key(id_field())
    });
    add("tombstone", Cause::InvalidKey, |s| s.key(id_field()));
    add("no JSON", Cause::InvalidKey, |s| s.record(|record| record.payload("{")).key(id_field()));
    add("field of a wrong type", Cause::InvalidKey, |s| {
        s.record(|record| record.payload(r#"{"id":[1]}"#)).key(id_field())
    });
    add("key in a field", Cause::Running, |s| {
        let mut s = s.record(|record| record.payload(r#"{"id":7}"#)).key(id_field());
        s.planter = Planter::new("7");
        s.plant(|entry, this, _| entry.start(this))
    });
    add("coordinates as key", Cause::Running, |mut s| {
        s.planter = Planter::new(&format!("{}#{}", s.at, *TOPIC_ID));
        s.key(KeySource::Coordinates).plant(|entry, this, _| entry.start(this))
    });
    add("Kafka key as key", Cause::Running, |s| {
        let mut s = s.record(|record| record.key("account-7")).key(KeySource::RecordKey);
        s.planter = Planter::new("account-7");
        s.plant(|entry, this, _| entry.start(this))
    });
}

fn id_field() -> KeySource {
    KeySource::JsonPointer("/id".into())
}

fn add_without_entry(add: Add<'_>) {
    add("no entry, no group", Cause::NoEntry, |s| s.group(None));
    add("first unfinished record", Cause::First, |s| s);
    add("behind an unfinished record", Cause::Behind, |s| s.committed(Some(0)));
    add("partition without an offset", Cause::NoCommittedOffset, |s| s.committed(None));
    add("unknown group", Cause::NoCommittedOffset, |s| s.group(Some("unknown")));
    add("no members", Cause::NoConsumer, |s| s.group(Some(IDLE)));
    add("no members, behind", Cause::NoConsumer, |s| s.group(Some(IDLE)).committed(Some(0)));
    add("finished without a lock", Cause::CommittedWithoutEntry, Situation::finished);
    add("finished, no members", Cause::CommittedWithoutEntry, |s| s.group(Some(IDLE)).finished());
    add("no members, offsets of a transaction pending", Cause::NoConsumer, |s| {
        copy("pending");
        let s = s.in_topic("pending").group(Some(TRANSACTIONAL));
        send_offsets(&s.at);
        s
    });
    add("first behind the marker of a transaction", Cause::First, |s| {
        transactions("marker.first", &[true, true], false);
        s.in_topic("marker.first").offset(2).group(Some(BUSY))
    });
    add("first behind deleted records", Cause::First, |s| {
        delete_first_record("overtaken");
        s.in_topic("overtaken").group(Some(BUSY)).committed(Some(0))
    });
    add("offset of the group beyond the end", Cause::CommittedBeyondEnd, |s| {
        s.committed(Some(100))
    });
    add("entry expired", Cause::CommittedWithoutEntry, |s| {
        s.finished().plant(|entry, this, _| {
            entry.complete(entry.acquire(this), this);
            entry.advance(8 * DAY);
        })
    });
    add("entry expired, delivered again", Cause::First, |s| {
        s.plant(|entry, this, _| {
            entry.complete(entry.acquire(this), this);
            entry.advance(8 * DAY);
        })
    });
}

fn add_processing(add: Add<'_>) {
    add("running", Cause::Running, |s| s.plant(|entry, this, _| entry.start(this)));
    add("lock of a killed process, no members", Cause::LockedWithoutConsumer, |s| {
        s.group(Some(IDLE)).plant(|entry, this, _| entry.start(this))
    });
    add("give-up lock of a killed process, no members", Cause::LockedWithoutConsumer, |s| {
        s.group(Some(IDLE)).plant(|entry, this, _| {
            entry.exhaust(this);
            entry.acquire(this);
        })
    });
    add("running by a process without details", Cause::Running, |s| {
        s.plant(|entry, _, _| entry.start(""))
    });
    add("running ahead of earlier records", Cause::Running, |s| {
        s.committed(Some(0)).plant(|entry, this, _| entry.start(this))
    });
    add("running in a later attempt", Cause::Running, |s| {
        s.plant(|entry, this, _| {
            entry.fail(entry.acquire(this), NOW, false);
            entry.acquire(this);
        })
    });
    add("running, lock renewed", Cause::Running, |s| {
        s.plant(|entry, this, _| {
            let grant = entry.acquire(this);
            entry.advance(TTL / 2);
            assert_eq!(entry.apply(Operation::Renew { grant, ttl: TTL }), Reply::Renewed);
            entry.advance(TTL / 2);
        })
    });
    add("running with details of another grant", Cause::Running, |s| {
        s.plant(|entry, _, other| {
            entry.fail(entry.acquire(other), NOW, false);
            entry.acquire("");
        })
    });
    add("running for another record", Cause::RunningForOther, |s| {
        s.plant(|entry, _, other| entry.start(other))
    });
    add("running for a record of another topic", Cause::RunningForOther, |s| {
        s.plant(|entry, _, _| entry.start("refunds/0@1"))
    });
    add("copy in a retry topic, running", Cause::Running, |s| {
        copy("payments.retry.1");
        s.in_topic("payments.retry.1").with_key("p-1").plant(|entry, this, _| entry.start(this))
    });
    add("running for a copy", Cause::RunningAfterCommit, |s| {
        s.finished().plant(|entry, _, _| entry.start("payments.retry/0@7"))
    });
    add("running after an offset reset", Cause::RunningAfterCommit, |s| {
        s.finished().plant(|entry, this, _| entry.start(this))
    });
    add("owner crashed", Cause::OwnerLost, |s| {
        s.plant(|entry, this, _| {
            entry.acquire(this);
            entry.advance(TTL);
        })
    });
    add("owner of another record crashed", Cause::OwnerLost, |s| {
        s.plant(|entry, _, other| {
            entry.acquire(other);
            entry.advance(HOUR);
        })
    });
    add("owner crashed, no members", Cause::NoConsumer, |s| {
        s.group(Some(IDLE)).plant(|entry, this, _| {
            entry.acquire(this);
            entry.advance(TTL);
        })
    });
    add("owner crashed in the last attempt", Cause::OwnerLostInLastAttempt, |s| {
        s.plant(crash_in_last_attempt)
    });
    add("owner crashed, maximum unknown", Cause::OwnerLost, |s| {
        s.without_max_attempts().plant(crash_in_last_attempt)
    });
    add("skipped after a crash", Cause::Abandoned, |s| {
        s.finished().plant(|entry, this, _| {
            entry.acquire(this);
            entry.advance(TTL);
        })
    });
}

fn crash_in_last_attempt(entry: &Planter, this: &str, _: &str) {
    for _ in 1..crate::planter::MAX_ATTEMPTS {
        entry.fail(entry.acquire(this), NOW, false);
    }
    entry.acquire(this);
    entry.advance(TTL);
}

fn add_given_up(add: Add<'_>) {
    add("dead letter being published", Cause::GivingUp, |s| {
        s.plant(|entry, this, _| {
            entry.exhaust(this);
            entry.acquire(this);
        })
    });
    add("dead letter of a permanent failure", Cause::GivingUp, |s| {
        s.plant(|entry, this, _| {
            entry.fail(entry.acquire(this), NOW, true);
            entry.acquire(this);
        })
    });
    add("crash while giving up", Cause::GiveUpInterrupted, |s| {
        s.plant(|entry, this, _| interrupt_give_ups(entry, this, 1))
    });
    add("three crashes while giving up", Cause::GiveUpInterrupted, |s| {
        s.plant(|entry, this, _| interrupt_give_ups(entry, this, 3))
    });
    add("four crashes while giving up", Cause::GiveUpBlocked, |s| {
        s.plant(|entry, this, _| interrupt_give_ups(entry, this, 4))
    });
    add("give-up released after four crashes", Cause::GiveUpBlocked, |s| {
        s.plant(|entry, this, _| {
            interrupt_give_ups(entry, this, 4);
            release(entry, this);
        })
    });
    add("blocked give-up, maximum raised", Cause::Released, |mut s| {
        s.max_attempts = Some(8);
        s.plant(|entry, this, _| {
            interrupt_give_ups(entry, this, 4);
            release(entry, this);
        })
    });
    add("blocked give-up, maximum unknown", Cause::GiveUpBlocked, |s| {
        s.without_max_attempts().plant(|entry, this, _| {
            interrupt_give_ups(entry, this, 4);
            release(entry, this);
        })
    });
    add("give-up released, dead-letter topic away", Cause::Exhausted, |s| {
        s.plant(|entry, this, _| {
            entry.exhaust(this);
            release(entry, this);
        })
    });
    add("given up", Cause::GivenUp, |s| {
        s.finished().plant(|entry, this, _| entry.give_up(entry.acquire(this)))
    });
    add("given up, not committed", Cause::GivenUp, |s| {
        s.plant(|entry, this, _| {
            entry.exhaust(this);
            entry.give_up(entry.acquire(this));
        })
    });
    add("given up by a process without details", Cause::GivenUp, |s| {
        s.finished().plant(|entry, _, _| entry.give_up(entry.acquire("")))
    });
    add("given up for another record", Cause::GivenUpForOther, |s| {
        s.plant(|entry, _, other| entry.give_up(entry.acquire(other)))
    });
    add("copy given up", Cause::GivenUpForOther, |s| {
        s.finished().plant(|entry, _, _| entry.give_up(entry.acquire("payments.retry/0@7")))
    });
    add("given up again after a redrive", Cause::GivenUpForOther, |s| {
        s.finished().plant(|entry, this, other| {
            entry.give_up(entry.acquire(this));
            repair(entry, false);
            entry.give_up(entry.acquire(other));
        })
    });
}

fn interrupt_give_ups(entry: &Planter, this: &str, times: u32) {
    entry.exhaust(this);
    for _ in 0..times {
        entry.acquire(this);
        entry.advance(TTL);
    }
}

/// Acquires the key and releases it.
fn release(entry: &Planter, this: &str) {
    let grant = entry.acquire(this);
    assert_eq!(entry.apply(Operation::Release { grant, ran: true }), Reply::Released);
}

/// Reopens, or unlocks.
fn repair(entry: &Planter, unlock: bool) {
    let plan = async {
        let (store, key) = (&entry.store, entry.key());
        let plan = match unlock {
            true => RepairPlan::unlock(store, &key).await?,
            false => RepairPlan::reopen(store, &key, true).await?,
        };
        plan.apply(store).await
    };
    plan.now_or_never().expect("the store does not wait").unwrap();
}

fn add_retrying(add: Add<'_>) {
    add("backing off", Cause::BackingOff, |s| {
        s.plant(|entry, this, _| entry.fail(entry.acquire(this), HOUR, false))
    });
    add("backing off, no members", Cause::BackingOff, |s| {
        s.group(Some(IDLE)).plant(|entry, this, _| entry.fail(entry.acquire(this), HOUR, false))
    });
    add("backing off for another record", Cause::BackingOff, |s| {
        s.plant(|entry, _, other| entry.fail(entry.acquire(other), HOUR, false))
    });
    add("backoff over", Cause::RetryDue, |s| {
        s.plant(|entry, this, _| {
            entry.fail(entry.acquire(this), HOUR, false);
            entry.advance(HOUR);
        })
    });
    add("backoff over, no members", Cause::NoConsumer, |s| {
        s.group(Some(IDLE)).plant(|entry, this, _| entry.fail(entry.acquire(this), NOW, false))
    });
    add("copy in a retry topic", Cause::RetryAfterCommit, |s| {
        s.finished().plant(|entry, this, _| entry.fail(entry.acquire(this), HOUR, false))
    });
    add("released by a shutdown", Cause::Released, |s| {
        s.plant(|entry, this, _| release(entry, this))
    });
    add("acquire cancelled", Cause::Released, |s| {
        s.plant(|entry, this, _| {
            let owner = entry.acquire(this).owner;
            assert_eq!(entry.apply(Operation::Cancel { owner }), Reply::Released);
        })
    });
    add("permanent failure without a dead letter", Cause::PermanentFailure, |s| {
        s.plant(|entry, this, _| entry.fail(entry.acquire(this), NOW, true))
    });
    add("no attempts left", Cause::Exhausted, |s| s.plant(|entry, this, _| entry.exhaust(this)));
    add("no attempts left, maximum unknown", Cause::RetryDue, |s| {
        s.without_max_attempts().plant(|entry, this, _| entry.exhaust(this))
    });
    add("consumer stopped at a permanent error", Cause::NoConsumer, |s| {
        // Attempts are left for a fixed handler.
        s.group(Some(IDLE)).plant(|entry, this, _| entry.fail(entry.acquire(this), NOW, false))
    });
    add("give-up of a permanent failure released", Cause::PermanentFailure, |s| {
        s.group(Some(IDLE)).plant(|entry, this, _| {
            entry.fail(entry.acquire(this), NOW, true);
            release(entry, this);
        })
    });
    add("consumer stopped after the last attempt", Cause::Exhausted, |s| {
        s.group(Some(IDLE)).plant(|entry, this, _| {
            entry.exhaust(this);
            release(entry, this);
        })
    });
    add("copy in a retry topic, waiting", Cause::BackingOff, |s| {
        copy("payments.retry.2");
        s.in_topic("payments.retry.2").with_key("p-1").plant(|entry, _, other| {
            entry.fail(entry.acquire(other), HOUR, false);
        })
    });
    add("reopened and produced again", Cause::Reopened, |s| {
        s.plant(|entry, _, other| {
            entry.give_up(entry.acquire(other));
            repair(entry, false);
        })
    });
    add("failed again after an unlock", Cause::RetryDue, |s| {
        s.plant(|entry, this, _| {
            entry.acquire(this);
            repair(entry, true);
            entry.fail(entry.acquire(this), NOW, false);
        })
    });
    add("reopened", Cause::Reopened, |s| {
        s.plant(|entry, this, _| {
            entry.give_up(entry.acquire(this));
            repair(entry, false);
        })
    });
    add("reopened, not produced", Cause::ReopenedAfterCommit, |s| {
        s.finished().plant(|entry, this, _| {
            entry.give_up(entry.acquire(this));
            repair(entry, false);
        })
    });
    add("unlocked after a failure", Cause::Unlocked, |s| {
        s.plant(|entry, this, _| {
            entry.fail(entry.acquire(this), NOW, false);
            entry.acquire(this);
            repair(entry, true);
        })
    });
    add("unlocked", Cause::Unlocked, |s| {
        s.plant(|entry, this, _| {
            entry.acquire(this);
            repair(entry, true);
        })
    });
}

fn add_completed(add: Add<'_>) {
    add("completed", Cause::Completed, |s| {
        s.finished().plant(|entry, this, _| entry.complete(entry.acquire(this), this))
    });
    add("completed, no group", Cause::Completed, |s| {
        s.group(None).plant(|entry, this, _| entry.complete(entry.acquire(this), this))
    });
    add("completed ahead of earlier records", Cause::CompletedUncommitted, |s| {
        s.committed(Some(0)).plant(|entry, this, _| entry.complete(entry.acquire(this), this))
    });
    add("completed at the last attempt", Cause::Completed, |s| {
        s.finished().plant(|entry, this, _| {
            entry.fail(entry.acquire(this), NOW, false);
            entry.complete(entry.acquire(this), this);
        })
    });
    add("duplicate", Cause::DuplicateOfOther, |s| {
        s.finished().plant(|entry, _, other| entry.complete(entry.acquire(other), other))
    });
    add("duplicate, not delivered yet", Cause::DuplicateOfOther, |s| {
        s.plant(|entry, _, other| entry.complete(entry.acquire(other), other))
    });
    add("duplicate of another topic", Cause::DuplicateOfOther, |s| {
        s.plant(|entry, _, _| entry.complete(entry.acquire("refunds/0@1"), "refunds/0@1"))
    });
    add("completed by its copy", Cause::DuplicateOfOther, |s| {
        let copy = "payments.retry/0@7";
        s.finished().plant(|entry, _, _| entry.complete(entry.acquire(copy), copy))
    });
    add("completed after a redrive", Cause::Completed, |s| {
        s.finished().plant(|entry, this, other| {
            entry.give_up(entry.acquire(other));
            repair(entry, false);
            entry.complete(entry.acquire(this), this);
        })
    });
    add("duplicate without details", Cause::DuplicateOfEarlier, |s| {
        s.finished().plant(|entry, this, _| {
            entry.complete(entry.acquire(this), "");
            entry.advance(DAY);
        })
    });
    add("completed without details", Cause::CompletedByAny, |s| {
        s.finished().plant(|entry, this, _| entry.complete(entry.acquire(this), ""))
    });
    add("completion adopted after the entry was lost", Cause::CompletedByAny, |s| {
        s.finished().plant(|entry, this, _| {
            let grant = entry.acquire(this);
            entry.advance(8 * DAY);
            entry.complete(grant, "");
        })
    });
}

/// The value is no entry, in Redis.
fn add_unreadable(add: Add<'_>) {
    add("value of a later version", Cause::Unreadable, |s| {
        s.garbled(&["SETRANGE", "0", "\u{2}"]).plant(|entry, this, _| entry.start(this))
    });
    add("value cut short", Cause::Unreadable, |s| s.garbled(&["SET", "short"]));
    add("value of another type", Cause::Unreadable, |s| s.garbled(&["RPUSH", "element"]));
}

/// A retry topic with a copy.
fn copy(topic: &str) {
    create(topic, &[]);
    let copies = ["other", "p-1"].map(|key| Message::to(topic).header(HEADER, key));
    KAFKA.producer().produce_all(copies).unwrap();
}

/// Sends an offset of the group to a transaction that stays open.
fn send_offsets(at: &Coordinates) {
    let mut config: ClientConfig = kafka_config();
    config.set("transactional.id", TRANSACTIONAL).set("transaction.timeout.ms", OPEN_MILLIS);
    let producer: BaseProducer = config.create().unwrap();
    let consumer: BaseConsumer = KAFKA.consumer_config(TRANSACTIONAL).create().unwrap();
    let group = consumer.group_metadata().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&at.topic, at.partition, Offset::Offset(at.offset + 1)).unwrap();
    producer.init_transactions(TIMEOUT).unwrap();
    producer.begin_transaction().unwrap();
    producer.send_offsets_to_transaction(&list, &group, TIMEOUT).unwrap();
}

fn create(topic: &str, config: &[(&str, &str)]) {
    KAFKA.create_topic(topic, 1, config).unwrap();
}

fn delete_first_record(topic: &str) {
    create(topic, &[]);
    let records = ["p-1", "p-2"].map(|key| Message::to(topic).header(HEADER, key));
    KAFKA.producer().produce_all(records).unwrap();
    let admin: AdminClient<DefaultClientContext> = kafka_config().create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Offset(1)).unwrap();
    let options = AdminOptions::new();
    let deleted = admin.delete_records(&list, &options);
    tokio::runtime::Handle::current().block_on(deleted).unwrap();
}

fn compact(topic: &str) {
    let config = [
        ("cleanup.policy", "compact"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("segment.ms", "100"),
        ("min.compaction.lag.ms", "0"),
    ];
    create(topic, &config);
    let message = || Message::to(topic).key("account-7").header(HEADER, "p-1").payload("x");
    KAFKA.producer().produce_all([message(), message()]).unwrap();
    // Only a closed segment is compacted, and the next record closes it.
    let compacted = eventually(TIMEOUT, || {
        KAFKA.producer().produce(message()).unwrap();
        super::first_offset(topic).filter(|first| *first > 0)
    });
    compacted.expect("the log cleaner has run");
}

/// Transactions of one record each, which are committed or aborted, and perhaps an open one.
fn transactions(topic: &'static str, commits: &[bool], opens: bool) {
    create(topic, &[]);
    let mut config: ClientConfig = kafka_config();
    config.set("transactional.id", topic).set("transaction.timeout.ms", OPEN_MILLIS);
    let producer: BaseProducer = config.create().unwrap();
    producer.init_transactions(TIMEOUT).unwrap();
    let send = || {
        producer.begin_transaction().unwrap();
        let headers = rdkafka::message::OwnedHeaders::new();
        let header = rdkafka::message::Header { key: HEADER, value: Some("p-1") };
        let record = BaseRecord::<(), str>::to(topic).partition(0).headers(headers.insert(header));
        producer.send(record.payload("x")).map_err(|(error, _)| error).unwrap();
        producer.flush(TIMEOUT).unwrap();
    };
    for commit in commits {
        send();
        match commit {
            true => producer.commit_transaction(TIMEOUT).unwrap(),
            false => producer.abort_transaction(TIMEOUT).unwrap(),
        }
    }
    if opens {
        send();
    }
}
