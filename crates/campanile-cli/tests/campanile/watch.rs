//! The verb `watch`, on a real Kafka, a real Redis, and an endpoint for Prometheus.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use campanile_test::{Message, eventually, free_port};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use serde_json::Value;

use crate::support::{KAFKA, NAMESPACE, Scene};
use crate::{campanile, finish};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Serves the pages one after another, and then the last one again. Returns the URL.
fn serve(pages: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for (index, connection) in listener.incoming().enumerate() {
            let mut connection = connection.unwrap();
            let request = BufReader::new(connection.try_clone().unwrap()).lines();
            let request: Vec<_> =
                request.map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
            assert!(request[0].starts_with("GET /metrics "), "{request:?}");
            let page = pages.get(index).or(pages.last()).unwrap();
            write!(
                connection,
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{page}",
                page.len()
            )
            .unwrap();
        }
    });
    url
}

fn page(group: &str, processed: u32) -> String {
    format!(
        "campanile_requests_total{{campanile_request_outcome=\"processed\"}} {processed}\n\
         campanile_locks_held{{campanile_namespace=\"payments\"}} 12\n\
         campanile_consumer_oldest_age_seconds{{messaging_consumer_group_name=\"{group}\"}} 90\n\
         campanile_consumer_paused{{messaging_consumer_group_name=\"{group}\",campanile_pause_cause=\"handle\"}} 1\n"
    )
}

/// Joins the group and commits this offset of partition 0.
fn join(topic: &str, offset: i64) -> BaseConsumer {
    let consumer: BaseConsumer = KAFKA.consumer_config(topic).create().unwrap();
    consumer.subscribe(&[topic]).unwrap();
    let is_assigned = || {
        consumer.poll(Duration::from_millis(50));
        (consumer.assignment().unwrap().count() > 0).then_some(())
    };
    eventually(TIMEOUT, is_assigned).expect("the member has an assignment");
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Offset(offset)).unwrap();
    consumer.commit(&list, CommitMode::Sync).unwrap();
    consumer
}

fn watch(group: &str, arguments: &[&str]) -> std::process::Command {
    let mut command = campanile(&["watch", "--group", group]);
    command.args(arguments).env("CAMPANILE_BROKERS", KAFKA.bootstrap());
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_shows_group_processes_and_entries() {
    let scene = Scene::new("cli-watch", 2).await;
    let group = &scene.topic;
    let records = (0..5).map(|n| Message::to(group).partition(0).payload(n.to_string()));
    KAFKA.producer().produce_all(records).unwrap();
    let _member = join(group, 2);
    scene.lock("p-1").await;

    let url = serve(vec![page(group, 10)]);
    let away = format!("http://127.0.0.1:{}", free_port().unwrap());
    let mut once = watch(group, &["--once", "--json", "--metrics", &url, "--metrics", &away]);
    once.args(["--entries", "--namespace", NAMESPACE]).env("CAMPANILE_STORE", scene.redis.url());
    let (code, stdout, stderr) = finish(once);
    assert_eq!(code, Some(0), "{stderr}");
    let view: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&view["state"], &view["members"]), (&"Stable".into(), &1.into()), "{view}");
    assert_eq!((&view["lag"], &view["records_per_second"]), (&3.into(), &Value::Null), "{view}");
    let [first, second] = &view["partitions"].as_array().unwrap()[..] else { panic!("{view}") };
    assert_eq!((&first["committed"], &first["end"]), (&2.into(), &5.into()), "{view}");
    assert!(first["member"].as_str().unwrap().ends_with("@127.0.0.1"), "{view}");
    assert_eq!((&second["committed"], &second["lag"]), (&Value::Null, &Value::Null), "{view}");
    let [process, absent] = &view["processes"].as_array().unwrap()[..] else { panic!("{view}") };
    assert_eq!((&process["in_flight"], &process["oldest_seconds"]), (&12.0.into(), &90.0.into()));
    assert_eq!((&process["paused"][0], &process["error"]), (&"handle".into(), &Value::Null));
    assert!(absent["error"].as_str().unwrap().contains("refused"), "{view}");
    assert_eq!(view["entries"]["processing"], 1, "{view}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_prints_a_line_with_rates_each_interval() {
    let scene = Scene::new("cli-watch-lines", 1).await;
    let group = &scene.topic;
    let _member = join(group, 0);
    let url = serve((0..100).map(|n| page(group, n * 10)).collect());
    let mut command = watch(group, &["--interval", "100ms", "--metrics", &url]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let (first, second) = (lines.next().unwrap(), lines.next().unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
    let (_, values) = first.split_once(' ').unwrap();
    assert_eq!(
        values,
        "group=cli-watch-lines state=Stable members=1 partitions=1 lag=0 records/s=- in_flight=12 \
         buffered=0 oldest=90s paused=1 unreachable=0"
    );
    assert!(second.contains(" lag=0 records/s=0.0 in_flight=12"), "{second}");
    assert!(second.contains(" processed/s=") && !second.contains("processed/s=0.0"), "{second}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_counts_records_of_an_open_transaction_and_reads_offsets_pending_in_it() {
    let scene = Scene::new("cli-watch-open", 1).await;
    let group = &scene.topic;
    KAFKA.producer().produce(Message::to(group).payload("0")).unwrap();
    let member = join(group, 1);
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", KAFKA.bootstrap()).set("transactional.id", group);
    let producer: BaseProducer = config.create().unwrap();
    producer.init_transactions(TIMEOUT).unwrap();
    producer.begin_transaction().unwrap();
    for _ in 0..3 {
        let record = BaseRecord::<(), str>::to(group).payload("in a transaction");
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(TIMEOUT).unwrap();
    let look = || {
        let (code, stdout, stderr) = finish(watch(group, &["--once", "--json"]));
        assert_eq!(code, Some(0), "{stderr}");
        let view: Value = serde_json::from_str(&stdout).unwrap();
        let partition = &view["partitions"][0];
        let offset = |name: &str| partition[name].as_i64();
        (offset("committed"), offset("end"), offset("lag"))
    };
    assert_eq!(look(), (Some(1), Some(4), Some(3)));

    let mut list = TopicPartitionList::new();
    list.add_partition_offset(group, 0, Offset::Offset(4)).unwrap();
    let metadata = member.group_metadata().unwrap();
    producer.send_offsets_to_transaction(&list, &metadata, TIMEOUT).unwrap();
    assert_eq!(look(), (Some(1), Some(4), Some(3)));
    producer.abort_transaction(TIMEOUT).unwrap();
}

/// `script` (of util-linux) runs it in a terminal of its own.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_repaints_a_terminal_in_place() {
    let scene = Scene::new("cli-watch-screen", 30).await;
    let _member = join(&scene.topic, 0);
    let binary = env!("CARGO_BIN_EXE_campanile");
    let watch = format!("{binary} watch --group {} --interval 100ms", scene.topic);
    let mut command = std::process::Command::new("script");
    command.args(["--quiet", "--command", &watch, "/dev/null"]);
    command.env("CAMPANILE_BROKERS", KAFKA.bootstrap()).env("TERM", "xterm");
    let mut child = command.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut until = |text: &str| -> Vec<String> {
        let mut seen = Vec::new();
        while seen.last().is_none_or(|line: &String| !line.contains(text)) {
            seen.push(lines.next().expect(text));
        }
        seen
    };
    let first = until("partitions with shorter lags");
    assert!(first[0].contains("cli-watch-screen: Stable, 1 member; 30 partitions"), "{first:?}");
    assert!(first.len() < 24, "more than a screen: {first:#?}");
    let second = until("partitions with shorter lags");
    let is_repainted = second[0].starts_with("\u{1b}[") && second[0].contains("lag 0, ");
    assert!(is_repainted && second[0].contains("records/s"), "{second:?}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn watch_of_unknown_group_topic_or_broker_fails() {
    let (code, stdout, stderr) = finish(watch("cli-no-such-group", &["--once"]));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stdout.contains("no members and no committed offsets"), "{stdout}");
    let (code, _, stderr) = finish(watch("g", &["--once", "--topic", "cli-nowhere"]));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("there is no topic `cli-nowhere`"), "{stderr}");
    for (arguments, text) in [
        (&["--metrics", "https://u:s3cret@pod"][..], "http://HOST:PORT/metrics"),
        (&["--interval", "0s"], "at least 100ms"),
        (&["--entries"], "--namespace"),
    ] {
        let (code, _, stderr) = finish(watch("g", arguments));
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(text), "{stderr}");
    }
    let mut away = watch("g", &["--once", "--timeout", "1s"]);
    let broker = format!("127.0.0.1:{}", free_port().unwrap());
    let (code, _, stderr) = finish({
        away.env("CAMPANILE_BROKERS", &broker);
        away
    });
    assert!(code == Some(3) && stderr.contains(&broker), "{stderr}");
}
