//! The verbs about entries: their output and their exit codes, on Redis and on Postgres.

use std::time::Duration;

use campanile_admin::{AnyStore, StoreConfig};
use campanile_core::{
    Command, Coordinates, Details, FencingToken, Grant, IdempotencyKey, Operation, Owner, Reply,
    Retention, StoreKey,
};
use campanile_idempotency::Store;
use campanile_test::{
    Message, MockKafka, PgServer, RedisCluster, RedisSentinel, RedisServer, free_port,
};
use serde_json::Value;

const NAMESPACE: &str = "billing.payments";
const HOUR: Duration = Duration::from_secs(3_600);
const TIMEOUT: Duration = Duration::from_secs(30);

/// The command, with the settings of its environment.
struct Campanile {
    store: String,
    brokers: String,
}

impl Campanile {
    /// Runs the command. Returns its exit code, and what it printed.
    fn run(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.command(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout) + &text(output.stderr))
    }

    fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = crate::campanile(arguments);
        command
            .env("CAMPANILE_STORE", &self.store)
            .env("CAMPANILE_BROKERS", &self.brokers)
            .env("CAMPANILE_NAMESPACE", NAMESPACE);
        command
    }

    /// Runs the command while nobody reads what it prints. Returns its exit code.
    fn run_unread(&self, arguments: &[&str]) -> i32 {
        let (_, unread) = std::io::pipe().unwrap();
        self.command(arguments).stdout(unread).status().unwrap().code().unwrap()
    }

    /// Asserts the exit code, and that these texts are printed.
    #[track_caller]
    fn check(&self, arguments: &[&str], code: i32, texts: &[&str]) {
        let (exit, output) = self.run(arguments);
        assert_eq!(exit, code, "{arguments:?}: {output}");
        for text in texts {
            assert!(output.contains(text), "{arguments:?}: no {text:?} in {output}");
        }
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let (_, output) = self.run(&[arguments, &["--json"]].concat());
        output.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }
}

/// Connects to the store, which may answer late on a stalled machine.
async fn connect(store: &str) -> AnyStore {
    let config = store.parse::<StoreConfig>().unwrap().with_command_timeout(TIMEOUT);
    config.connect().await.unwrap()
}

/// Plants the entries `failed`, `running`, `waiting` and `done`, for the records of the partition in
/// this order.
async fn plant(store: &AnyStore) {
    for (offset, name) in (0_i64..).zip(["failed", "running", "waiting", "done"]) {
        let key = IdempotencyKey::new(name).unwrap();
        let store_key = StoreKey::new(NAMESPACE.try_into().unwrap(), &key);
        let owner = Owner::new(offset as u64 + 1).unwrap();
        let record = Coordinates { topic: "payments".into(), partition: 0, offset };
        let details = Details::builder(owner).key(&key).instance("pod-7/1").coordinates(&record);
        let apply = |operation| {
            let key = store_key.clone();
            store.apply(Command { key, operation, retention: Retention::default() })
        };
        let acquire = Operation::Acquire {
            owner,
            ttl: HOUR,
            max_attempts: 8,
            fingerprint: None,
            floor: FencingToken::ZERO,
            details: Some(details.build()),
        };
        let Reply::Acquired { token, attempt, .. } = apply(acquire).await.unwrap().reply else {
            panic!("{name} is not granted");
        };
        let grant = Grant { token, owner };
        let settle = match name {
            "failed" => Operation::GiveUp { grant, reason: "card stolen".into() },
            "waiting" => {
                let error = "card declined".into();
                Operation::Fail { grant, delay: HOUR, last: false, error }
            }
            "done" => {
                let (fingerprint, reply, details) = (None, None, None);
                Operation::Complete { grant, attempt, fingerprint, reply, details }
            }
            _ => continue,
        };
        apply(settle).await.unwrap();
    }
}

/// Runs each verb on the planted entries.
async fn verbs_work_on(store: &str) -> (Campanile, MockKafka) {
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("payments", 1).unwrap();
    let record = |key: &str| Message::to("payments").header("idempotency-key", key);
    let records = ["failed", "running", "waiting", "done", "unknown"].map(record);
    kafka.producer().produce_all(records).unwrap();
    plant(&connect(store).await).await;
    let campanile = Campanile { store: store.into(), brokers: kafka.bootstrap() };

    let (code, listed) = campanile.run(&["list", "--state", "failed"]);
    assert_eq!((code, listed.lines().count()), (0, 1), "{listed}");
    assert!(listed.contains("failed  FAILED: given up at"), "{listed}");
    assert!(listed.contains("attempts 1  record payments/0@0  error: card stolen"), "{listed}");
    assert_eq!(campanile.json(&["list"]).len(), 4);
    assert_eq!(campanile.json(&["list", "--limit", "3"]).len(), 3);
    assert_eq!(campanile.json(&["list", "--error", "declined"])[0]["key"], "waiting");
    assert_eq!(campanile.run(&["list", "--older", "1h"]), (0, String::new()));
    assert_eq!(campanile.run(&["list", "--state", "stuck"]), (0, String::new()));

    campanile.check(&["inspect", "running"], 0, &["PROCESSING: attempt 1", "process   pod-7/1"]);
    campanile.check(&["inspect", "unknown"], 1, &["no entry"]);
    let done = campanile.json(&["inspect", "done"]).remove(0);
    assert_eq!((&done["state"], &done["key"]), (&"completed".into(), &"done".into()));
    let digest = done["digest"].as_str().unwrap();
    campanile.check(&["inspect", "--digest", digest], 0, &["not stored", "COMPLETED at"]);

    let causes = ["given_up", "running", "backing_off", "completed_by_any", "no_entry"];
    for (offset, cause) in causes.iter().enumerate() {
        let record = format!("payments/0@{offset}");
        assert_eq!(campanile.json(&["explain", &record])[0]["cause"], *cause, "{record}");
    }
    let explain = ["explain", "payments/0@4", "--group", "billing"];
    campanile.check(&explain, 0, &["never committed an offset", "no committed offset"]);
    campanile.check(&["explain", "payments/0@9"], 1, &["There is no such record yet"]);
    let by_coordinates = ["explain", "payments/0@0", "--key-coordinates"];
    campanile.check(&by_coordinates, 0, &["The key has no entry", "key       payments/0@0"]);

    let failed = ["reopen", "failed"];
    campanile.check(&failed, 1, &["FAILED", "counted from 0 again", "to do it, add --yes"]);
    assert_eq!(campanile.json(&["inspect", "failed"])[0]["state"], "failed");
    assert_eq!(campanile.run_unread(&["reopen", "failed", "--yes"]), 0);
    assert_eq!(campanile.json(&["inspect", "failed"])[0]["state"], "retrying");
    campanile.check(&["reopen", "done", "--yes"], 1, &["use force", "nothing changed"]);
    campanile.check(&["reopen", "done", "--yes", "--force"], 0, &["may happen twice", "done"]);
    campanile.check(&["unlock", "running"], 1, &["the handler continues", "add --yes"]);
    let unlocked = campanile.json(&["unlock", "running", "--yes"]).remove(0);
    assert_eq!((&unlocked["outcome"], &unlocked["is_possible"]), (&"done".into(), &true.into()));
    campanile.check(&["unlock", "running", "--yes"], 1, &["there is no lock"]);
    assert_eq!(campanile.run_unread(&["unlock", "running", "--yes"]), 1);
    entries_are_deleted(&campanile).await;
    (campanile, kafka)
}

/// Plants COMPLETED entries with grants of long ago.
async fn plant_old(store: &str, names: &[&str]) {
    let store = connect(store).await;
    for name in names {
        let key = IdempotencyKey::new((*name).to_owned()).unwrap();
        let grant = Grant { token: FencingToken::new(1).unwrap(), owner: Owner::new(1).unwrap() };
        let (attempt, fingerprint, reply, details) = (1, None, None, None);
        let operation = Operation::Complete { grant, attempt, fingerprint, reply, details };
        let key = StoreKey::new(NAMESPACE.try_into().unwrap(), &key);
        let command = Command { key, operation, retention: Retention::default() };
        assert_eq!(store.apply(command).await.unwrap().reply, Reply::Completed);
    }
}

/// Runs the verbs that delete entries. Leaves another entry, `held`.
async fn entries_are_deleted(campanile: &Campanile) {
    let store = connect(&campanile.store).await;
    let held = StoreKey::new(NAMESPACE.try_into().unwrap(), &IdempotencyKey::new("held").unwrap());
    let acquire = Operation::Acquire {
        owner: Owner::new(1).unwrap(),
        ttl: HOUR,
        max_attempts: 8,
        fingerprint: None,
        floor: FencingToken::ZERO,
        details: None,
    };
    let retention = Retention::default();
    store.apply(Command { key: held, operation: acquire, retention }).await.unwrap();
    plant_old(&campanile.store, &["old-1", "old-2", "old-3"]).await;
    let later = ["expire", "old-1", "--after", "1h"];
    campanile.check(&later, 1, &["COMPLETED", "expires 1 h after the change", "add --yes"]);
    campanile.check(&[&later[..], &["--yes"]].concat(), 0, &["done"]);
    campanile.check(&["inspect", "old-1"], 0, &["(in 59 min"]);
    let now = ["expire", "old-1", "--after", "0s", "--yes"];
    campanile.check(&now, 0, &["It is deleted. A delivery", "runs the handler again", "done"]);
    campanile.check(&now, 1, &["There is no entry", "nothing changed"]);
    campanile.check(&["inspect", "old-1"], 1, &["no entry"]);
    let held = ["expire", "held", "--after", "0s", "--yes"];
    campanile.check(&held, 1, &["It is being processed", "nothing changed"]);

    let completed = ["purge", "--state", "completed"];
    campanile.check(&completed, 1, &["COMPLETED                2", "nothing deleted", "add --yes"]);
    campanile.check(&["inspect", "old-2"], 0, &["COMPLETED"]);
    campanile.check(&["purge", "--all", "--older", "1h"], 0, &["nothing to delete"]);
    let purged = campanile.json(&["purge", "--state", "completed", "--rate", "1000", "--yes"]);
    assert_eq!(purged[0]["completed"]["entries"], 2, "{purged:?}");
    campanile.check(&["inspect", "old-2"], 1, &["no entry"]);
    campanile.check(&[&completed[..], &["--yes"]].concat(), 0, &["done"]);
    assert_eq!(campanile.json(&["list"]).len(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entry_verbs_work_on_redis() {
    let redis = RedisServer::start().unwrap();
    let (mut campanile, _kafka) = verbs_work_on(&redis.url()).await;

    // Another version byte.
    let garble = "for _, key in ipairs(redis.call('KEYS', '{billing*')) do \
                  redis.call('SETRANGE', key, 0, 'X') end";
    redis.cli(&["EVAL", garble, "0"]).unwrap();
    campanile.check(&["inspect", "done"], 1, &["unreadable", "0x58"]);
    let (code, listed) = campanile.run(&["list", "--state", "failed"]);
    assert_eq!((code, listed.lines().count()), (1, 5), "{listed}");
    campanile.check(&["explain", "payments/0@3"], 1, &["no entry of this version"]);
    let texts = ["no entry of this version", "nothing changed"];
    campanile.check(&["reopen", "done", "--yes"], 1, &texts);
    campanile.check(&["unlock", "done", "--yes"], 1, &texts);
    campanile.check(&["expire", "done", "--after", "0s", "--yes"], 1, &texts);
    campanile.check(&["purge", "--all", "--yes"], 1, &["5 unreadable"]);
    campanile.check(&["migrate"], 2, &["only Postgres has a schema"]);

    campanile.check(&["inspect", "done", "--buckets", "64"], 2, &["buckets"]);
    campanile.store = format!("redis://127.0.0.1:{}", free_port().unwrap());
    campanile.check(&["list"], 3, &["cannot connect to the store"]);
}

/// Runs a verb of each kind.
async fn some_verbs_work_on(store: String) {
    plant(&connect(&store).await).await;
    let campanile = Campanile { store, brokers: String::new() };
    campanile.check(&["inspect", "failed"], 0, &["FAILED"]);
    assert_eq!(campanile.json(&["list"]).len(), 4);
    assert_eq!(campanile.run_unread(&["reopen", "failed", "--yes"]), 0);
    campanile.check(&["unlock", "running", "--yes"], 0, &["done"]);
    campanile.check(&["reopen", "done", "--yes", "--force"], 0, &["done"]);
    entries_are_deleted(&campanile).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entry_verbs_work_behind_sentinels() {
    // A busy machine must not look like a failed primary.
    let redis = RedisSentinel::builder().sentinels(1).down_after(Duration::from_secs(30));
    let redis = redis.start().unwrap();
    let urls = redis.urls();
    let (_, host) = urls[0].split_once("://").unwrap();
    some_verbs_work_on(format!("redis+sentinel://{host}/{}", redis.name())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entry_verbs_work_on_a_cluster() {
    // A busy machine must not look like failed nodes.
    let redis = RedisCluster::builder().config("cluster-node-timeout", "15000").start().unwrap();
    let urls = redis.urls();
    let hosts: Vec<_> = urls.iter().map(|url| url.split_once("://").unwrap().1).collect();
    some_verbs_work_on(format!("redis+cluster://{}", hosts.join(","))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_without_writes_can_read_and_not_repair() {
    let docs = include_str!("../../../../library/campanile-redis/src/config.rs").lines();
    let rules = docs.filter_map(|line| line.strip_prefix("/// reader")).next().unwrap();
    let user = format!("reader on >r3ader {rules}");
    let redis = RedisServer::builder().config("user", &user).start().unwrap();
    plant(&connect(&redis.url()).await).await;
    let store = redis.url().replace("redis://", "redis://reader:r3ader@");
    let campanile = Campanile { store, brokers: String::new() };
    campanile.check(&["list"], 0, &["failed  FAILED", "running  PROCESSING"]);
    for verb in ["reopen", "unlock"] {
        let name = if verb == "reopen" { "failed" } else { "running" };
        campanile.check(&[verb, name], 1, &["add --yes"]);
        let (_, before) = campanile.run(&["inspect", name, "--json"]);
        campanile.check(&[verb, name, "--yes"], 3, &["cannot change the entry"]);
        assert_eq!(campanile.run(&["inspect", name, "--json"]), (0, before));
    }
    let (_, output) = campanile.run(&["reopen", "failed", "--yes"]);
    assert!(!output.contains("r3ader"), "{output}");
    plant_old(&redis.url(), &["old"]).await;
    campanile.check(&["purge", "--state", "completed"], 1, &["COMPLETED                1"]);
    campanile.check(&["purge", "--state", "completed", "--yes"], 3, &["cannot delete the entries"]);
    campanile.check(&["expire", "old", "--after", "0s", "--yes"], 3, &["cannot change the entry"]);
    campanile.check(&["inspect", "old"], 0, &["COMPLETED"]);
}

fn schema_is_migrated(postgres: &PgServer) {
    let campanile = Campanile { store: postgres.url(), brokers: String::new() };
    campanile.check(&["list"], 3, &["has no Campanile schema"]);
    campanile.check(&["migrate"], 1, &["There is no schema", "   1  the entries", "add --yes"]);
    let plan = campanile.json(&["migrate"]).remove(0);
    assert_eq!((plan["installed"].as_i64(), &plan["done"]), (None, &false.into()));
    assert_eq!(plan["pending"][0], 1);
    campanile.check(&["migrate", "--yes"], 0, &["   1  the entries", "done"]);
    campanile.check(&["migrate", "--yes"], 0, &["Nothing is pending"]);
    let plan = campanile.json(&["migrate"]).remove(0);
    assert_eq!(plan["installed"], plan["required"]);
    postgres.psql("INSERT INTO campanile.migration (version) VALUES (99)").unwrap();
    campanile.check(&["migrate", "--yes"], 1, &["has version 99", "use a later one"]);
    postgres.psql("DELETE FROM campanile.migration WHERE version = 99").unwrap();
    let roleless = Campanile { store: "postgres://nobody@127.0.0.1:1/x".into(), ..campanile };
    let (code, output) =
        roleless.run(&["migrate", "--store", "postgres://app:s3cret@127.0.0.1:1/x"]);
    assert!(code == 2 && !output.contains("s3cret"), "{output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entry_verbs_work_on_postgres() {
    let postgres = PgServer::start().unwrap();
    schema_is_migrated(&postgres);
    let (mut campanile, _kafka) = verbs_work_on(&postgres.url()).await;

    let grants = "CREATE USER reader; GRANT USAGE ON SCHEMA campanile TO reader; \
                  GRANT SELECT ON campanile.entry TO reader";
    postgres.psql(grants).unwrap();
    campanile.store = postgres.url().replace("postgres@", "reader@");
    assert_ne!(campanile.store, postgres.url());
    campanile.check(&["inspect", "waiting"], 0, &["RETRYING"]);
    campanile.check(&["list"], 0, &["waiting  RETRYING"]);
    campanile.check(&["reopen", "waiting", "--force"], 1, &["add --yes"]);
    campanile.check(&["reopen", "waiting", "--force", "--yes"], 3, &["cannot change the entry"]);
}

#[test]
fn wrong_arguments_are_refused() {
    let campanile =
        Campanile { store: "redis://127.0.0.1:1".into(), brokers: "127.0.0.1:1".into() };
    for (arguments, text) in [
        (&["inspect", ""][..], "the key is empty"),
        (&["inspect"], "required arguments"),
        (&["inspect", "--digest", "12"], "32 hexadecimal digits"),
        (&["inspect", "p-1", "--digest", &"0".repeat(32)], "cannot be used with"),
        (&["inspect", "p-1", "--namespace", "Billing"], "does not match"),
        (&["list", "--state", "broken"], "possible values"),
        (&["list", "--older", "soon"], "invalid value"),
        (&["list", "--max-share", "0"], "not in 1..=100"),
        (&["reopen", ""], "the key is empty"),
        (&["expire", "p-1"], "--after"),
        (&["purge"], "<--state <STATE>|--all>"),
        (&["purge", "--all", "--state", "failed"], "cannot be used with"),
        (&["purge", "--all", "--rate", "0"], "invalid value"),
        (&["explain", "payments"], "topic/partition@offset"),
        (&["explain", "payments/0@-1"], "topic/partition@offset"),
        (&["explain", "payments/0@1", "--key-pointer", "id"], "begins with /"),
        (&["explain", "payments/0@1", "--key-header", "a", "--key-coordinates"], "cannot be used"),
        (&["list", "--store", "mysql://db"], "must begin with"),
    ] {
        campanile.check(arguments, 2, &[text]);
    }
}
