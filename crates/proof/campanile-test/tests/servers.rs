//! The real servers behave as the test kit documents them.

#![expect(clippy::unwrap_used, reason = "test helpers")]

use campanile_test::{
    Delivered, KafkaAdmin, KafkaServer, Message, Producer, Proxy, RedisServer, ServerError,
    eventually, free_port,
};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{BorrowedMessage, DeliveryResult, Headers};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};
use rdkafka::{ClientConfig, ClientContext, Message as _, Statistics};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Receives the next message. A poll also ends when it has served a rebalance.
fn next(consumer: &BaseConsumer) -> BorrowedMessage<'_> {
    eventually(TIMEOUT, || consumer.poll(Duration::from_millis(100))).expect("a message").unwrap()
}

#[test]
fn append_only_redis_keeps_data_after_kill() {
    let mut redis = RedisServer::builder().append_only(true).start().unwrap();
    let url = redis.url();
    redis.cli(&["SET", "bell", "rung\r\ntwice"]).unwrap();
    redis.kill().unwrap();
    TcpStream::connect(redis.addr()).expect_err("the port is closed");
    redis.cli(&["PING"]).expect_err("the server is down");
    redis.restart().unwrap();
    assert_eq!(redis.cli(&["GET", "bell"]).unwrap(), "rung\r\ntwice");
    assert_eq!(redis.url(), url);
}

#[test]
fn in_memory_redis_is_empty_after_restart() {
    let mut redis = RedisServer::start().unwrap();
    redis.cli(&["SET", "bell", "rung"]).unwrap();
    redis.restart().unwrap();
    assert_eq!(redis.cli(&["GET", "bell"]).unwrap(), "(nil)");
}

#[test]
fn paused_redis_answers_after_resume() {
    let mut redis = RedisServer::start().unwrap();
    redis.pause().unwrap();
    // The kernel accepts connections on behalf of the paused server.
    let connection = TcpStream::connect(redis.addr()).unwrap();
    connection.set_nonblocking(true).unwrap();
    std::io::Write::write_all(&mut &connection, b"PING\r\n").unwrap();
    assert_eq!(connection.peek(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    redis.resume().unwrap();
    eventually(TIMEOUT, || connection.peek(&mut [0]).ok()).expect("the answer");
    assert_eq!(redis.cli(&["PING"]).unwrap(), "PONG");
}

#[test]
fn redis_applies_config_lines_and_password() {
    let redis = RedisServer::builder()
        .password("sesame")
        .config("maxmemory", "2mb")
        .config("user", "ringer on >bell ~* +@all")
        .start()
        .unwrap();
    assert_eq!(redis.url(), format!("redis://:sesame@{}", redis.addr()));
    let memory = redis.cli(&["CONFIG", "GET", "maxmemory"]).unwrap();
    assert_eq!(memory, "maxmemory\n2097152");
    assert_eq!(redis.cli(&["AUTH", "ringer", "bell"]).unwrap(), "OK");
    let error = redis.cli(&["NONSENSE"]).unwrap_err();
    assert!(error.to_string().starts_with("ERR unknown command"), "{error}");
}

#[test]
fn redis_without_default_user_starts() {
    let redis = RedisServer::builder()
        .config("user", "default off")
        .config("user", "ringer on >bell ~* +@all")
        .start()
        .unwrap();
    let error = redis.cli(&["PING"]).unwrap_err();
    assert!(error.to_string().starts_with("NOAUTH"), "{error}");
}

#[test]
fn failed_redis_start_shows_log_tail() {
    let error = RedisServer::builder().config("bell", "ding").start().unwrap_err();
    assert!(matches!(error, ServerError::Exited { .. }), "{error}");
    assert!(format!("{error:?}").contains("bell ding"), "{error:?}");
}

#[test]
fn many_redis_servers_start_at_once() {
    let starts: Vec<_> = (0..8).map(|_| std::thread::spawn(RedisServer::start)).collect();
    let servers: Vec<_> = starts.into_iter().map(|s| s.join().unwrap().unwrap()).collect();
    for (number, server) in servers.iter().enumerate() {
        server.cli(&["SET", "number", &number.to_string()]).unwrap();
    }
    for (number, server) in servers.iter().enumerate() {
        assert_eq!(server.cli(&["GET", "number"]).unwrap(), number.to_string());
    }
}

/// One server for the whole scenario, because its start takes seconds.
#[test]
fn kafka_keeps_messages_and_offsets_through_pause_and_kill() {
    // A node that is its own controller may lose its groups when it restarts.
    let mut kafka = KafkaServer::builder().separate_controller().start().unwrap();
    kafka.create_topic("orders", 2, &[("cleanup.policy", "compact")]).unwrap();
    let again = kafka.create_topic("orders", 2, &[]).unwrap_err();
    assert!(again.to_string().contains("TopicAlreadyExists"), "{again}");

    let message = Message::to("orders")
        .partition(1)
        .key("k-1")
        .payload("an order")
        .header("trace", "t-1")
        .null_header("empty");
    let delivered = kafka.producer().produce(message).unwrap();
    assert_eq!(delivered, Delivered { partition: 1, offset: 0 });

    let consumer: BaseConsumer = kafka.consumer_config("billing").create().unwrap();
    consumer.subscribe(&["orders"]).unwrap();
    {
        let received = next(&consumer);
        assert_eq!(received.key(), Some(&b"k-1"[..]));
        assert_eq!(received.payload(), Some(&b"an order"[..]));
        let headers: Vec<_> = received.headers().unwrap().iter().collect();
        assert_eq!((headers[0].key, headers[0].value), ("trace", Some(&b"t-1"[..])));
        assert_eq!((headers[1].key, headers[1].value), ("empty", None));
        consumer.commit_message(&received, CommitMode::Sync).unwrap();
    }
    drop(consumer);

    kafka.pause().unwrap();
    let client: BaseConsumer = kafka.consumer_config("looker").create().unwrap();
    let nothing = client.fetch_metadata(None, Duration::from_millis(300));
    nothing.expect_err("a paused broker answers nothing");
    kafka.resume().unwrap();
    eventually(TIMEOUT, || client.fetch_metadata(None, Duration::from_secs(1)).ok())
        .expect("the broker answers again");

    kafka.kill().unwrap();
    kafka.restart().unwrap();
    let second = Message::to("orders").partition(1).key("k-2");
    assert_eq!(kafka.producer().produce(second).unwrap().offset, 1);
    let consumer: BaseConsumer = kafka.consumer_config("billing").create().unwrap();
    consumer.subscribe(&["orders"]).unwrap();
    let received = next(&consumer);
    assert_eq!((received.offset(), received.payload()), (1, None));
}

#[test]
fn kafka_operator_changes_topics_and_quotas() {
    let kafka = KafkaServer::builder()
        .property("log.retention.check.interval.ms", "200")
        .property("log.initial.task.delay.ms", "200")
        .start()
        .unwrap();
    let admin = KafkaAdmin::new(kafka.bootstrap());
    let produce = |count: usize| {
        let producer = Producer::new(&kafka.bootstrap()).unwrap();
        let message = || Message::to("orders").partition(0).payload("an order");
        producer.produce_all(std::iter::repeat_with(message).take(count)).unwrap();
    };
    admin.create_topic("orders", 1, &[]).unwrap();
    produce(3);
    admin.delete_records("orders", 0, 2).unwrap();
    assert_eq!(admin.watermarks("orders", 0).unwrap(), (2, 3));
    admin.set_topic_config("orders", &[("retention.ms", "1")]).unwrap();
    let is_empty = || (admin.watermarks("orders", 0).unwrap() == (3, 3)).then_some(());
    eventually(TIMEOUT, is_empty).expect("the retention deletes all");
    admin.delete_topic("orders").unwrap();
    admin.create_topic("orders", 1, &[]).unwrap();
    produce(1);
    assert_eq!(admin.watermarks("orders", 0).unwrap(), (0, 1));
    admin.add_partitions("orders", 3).unwrap();
    assert_eq!(admin.watermarks("orders", 2).unwrap(), (0, 0));
    // The broker holds back the answer to a client that has sent too much.
    admin.set_quota("slow", "producer_byte_rate", Some(1_000.0)).unwrap();
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", kafka.bootstrap()).set("client.id", "slow");
    config.set("statistics.interval.ms", "100");
    let producer: BaseProducer<Throttled> =
        config.create_with_context(Throttled::default()).unwrap();
    let payload = vec![b'x'; 20_000];
    let is_throttled = || {
        let record = BaseRecord::<[u8], [u8]>::to("orders").payload(&payload);
        producer.send(record).map_err(|(error, _)| error).unwrap();
        producer.flush(TIMEOUT).unwrap();
        producer.context().0.load(Ordering::SeqCst).then_some(())
    };
    eventually(TIMEOUT, is_throttled).expect("the client is throttled");
    admin.set_quota("slow", "producer_byte_rate", None).unwrap();
}

/// Notes whether the broker has throttled the client.
#[derive(Default)]
struct Throttled(AtomicBool);

impl ClientContext for Throttled {
    fn stats(&self, statistics: Statistics) {
        let throttled = statistics
            .brokers
            .values()
            .any(|broker| broker.throttle.as_ref().is_some_and(|throttle| throttle.max > 0));
        self.0.fetch_or(throttled, Ordering::SeqCst);
    }
}

impl ProducerContext for Throttled {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

#[test]
#[cfg(target_os = "linux")]
fn kafka_with_a_full_disk_exits_and_keeps_what_it_acknowledged() {
    let mut kafka = KafkaServer::builder().separate_controller().start().unwrap();
    kafka.create_topic("orders", 1, &[]).unwrap();
    kafka.producer().produce(Message::to("orders").payload("an order")).unwrap();
    kafka.fill_disk().unwrap();
    kafka.restart().unwrap();
    let delivered = kafka.producer().produce(Message::to("orders").payload("an order"));
    assert_eq!(delivered.unwrap().offset, 1);
}

#[test]
fn kafka_broker_restarts_beside_its_separate_controller() {
    let mut kafka = KafkaServer::builder().separate_controller().start().unwrap();
    kafka.create_topic("orders", 1, &[]).unwrap();
    for offset in 0..2 {
        let delivered = kafka.producer().produce(Message::to("orders").payload("an order"));
        assert_eq!(delivered.unwrap().offset, offset);
        kafka.kill().unwrap();
        kafka.restart().unwrap();
    }
}

#[test]
fn kafka_assigns_partitions_quickly_with_either_protocol() {
    let kafka =
        KafkaServer::builder().property("auto.create.topics.enable", "true").start().unwrap();
    kafka.producer().produce(Message::to("created").payload("1")).unwrap();

    let classic = kafka.consumer_config("classic");
    let mut newer = kafka.consumer_config("newer");
    newer
        .remove("session.timeout.ms")
        .remove("heartbeat.interval.ms")
        .set("group.protocol", "consumer");
    for config in [classic, newer] {
        let consumer: BaseConsumer = config.create().unwrap();
        consumer.subscribe(&["created"]).unwrap();
        let received = next(&consumer);
        assert_eq!(received.payload(), Some(&b"1"[..]));
    }
}

#[test]
fn kafka_advertising_a_proxy_is_reached_through_it() {
    let port = free_port().unwrap();
    let proxy = Proxy::to((Ipv4Addr::LOCALHOST, port)).unwrap();
    let kafka = KafkaServer::builder()
        .port(port)
        .property("advertised.listeners", &format!("PLAINTEXT://{}", proxy.addr()))
        .start()
        .unwrap();
    kafka.create_topic("orders", 1, &[]).unwrap();
    kafka.producer().produce(Message::to("orders").payload("1")).unwrap();
    let consumer: BaseConsumer = kafka.consumer_config("billing").create().unwrap();
    consumer.subscribe(&["orders"]).unwrap();
    next(&consumer);

    proxy.cut();
    let fetch = || consumer.fetch_watermarks("orders", 0, Duration::from_millis(500));
    fetch().expect_err("the leader is reached through the proxy");
    proxy.heal().unwrap();
    assert_eq!(eventually(TIMEOUT, || fetch().ok()), Some((0, 1)));
}

#[test]
fn failed_kafka_start_shows_log_tail() {
    let error =
        KafkaServer::builder().property("log.retention.ms", "for ever").start().unwrap_err();
    assert!(matches!(error, ServerError::Exited { .. }), "{error}");
    assert!(error.to_string().contains("for ever"), "{error}");
}
