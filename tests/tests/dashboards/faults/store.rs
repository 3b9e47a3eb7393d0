//! Faults of Redis.

use std::time::Duration;

use campanile::store::{Command, Grant, Operation, Owner, Retention, Store, StoreKey};
use campanile::{FencingToken, IdempotencyKey, IdempotencyLayer, RedisConfig, RedisStore};
use campanile_test::RedisServer;
use tokio::time::timeout;
use tower::ServiceExt;

use super::{Faults, SHORT};
use crate::workload::{Does, Job, config, job_key, run_job, service};

impl Faults {
    pub(crate) async fn redis_outage(&mut self) {
        let direct = config("direct").with_lock_ttl(SHORT);
        let keeper = self.keeper().await;
        let layer = IdempotencyLayer::new(&keeper, direct, job_key()).unwrap();
        let unguarded =
            service(layer.clone().with_fail_open_risking_duplicates(|_, _| true), &self.gate);
        let expires = service(layer, &self.gate);
        let rise = self.rise(&[
            "campanile_completions_unrecorded",
            "campanile_consumer_store_unavailable",
            r#"campanile_store_errors_total{error_type="timeout"}"#,
            r#"campanile_requests_total{campanile_request_outcome="store_error"}"#,
            r#"campanile_locks_lost_total{campanile_lock_loss_cause="expired"}"#,
            r#"campanile_unguarded_runs_total{campanile_unguarded_cause="store_unavailable"}"#,
        ]);
        self.produce("payments", 0, &Job::new("unrecorded", Does::Hold));
        let running = tokio::spawn(run_job(expires, Job::new("expires", Does::Hold).request()));
        self.gate.wait_until_held(2).await;
        self.redis.pause().unwrap();
        running.await.unwrap().unwrap_err();
        unguarded.oneshot(Job::new("unguarded", Does::Succeed).request()).await.unwrap();
        self.gate.release(1);
        self.produce("payments", 1, &Job::new("not-started", Does::Succeed));
        self.wait_for(rise).await;
        self.redis.resume().unwrap();
        self.wait_for_zero("campanile_completions_unrecorded").await;
        self.wait_for_zero("campanile_consumer_store_unavailable").await;

        // Killed and restarted, with its data.
        let rise = self.rise(&[r#"campanile_store_errors_total{error_type="unavailable"}"#]);
        self.redis.kill().unwrap();
        self.produce("payments", 1, &Job::new("restarted", Does::Succeed));
        self.wait_for(rise).await;
        self.redis.restart().unwrap();
        self.wait_for_zero("campanile_consumer_store_unavailable").await;
    }

    /// A dependency of the handlers that is unavailable.
    pub(crate) async fn dependency_outage(&self) {
        let rise = self.rise(&["campanile_consumer_dependencies_unavailable"]);
        self.produce("payments", 0, &Job::new("depends", Does::Depend));
        self.wait_for(rise).await;
        self.gate.restore_dependency();
        self.wait_for_zero("campanile_consumer_dependencies_unavailable").await;
    }

    /// An entry that cannot be read, and a replica that is missing.
    pub(crate) async fn unsafe_store(&self) {
        let rise = self.rise(&[
            r#"campanile_store_errors_total{error_type="unreadable"}"#,
            "campanile_redis_shortfalls_total",
        ]);
        let broken = self.service(&self.keeper().await, "broken");
        let job = Job::new("a", Does::Succeed).request();
        run_job(broken.clone(), job.clone()).await.unwrap();
        self.for_each_entry("broken", |key| redis::Cmd::set(key, "garbage"));
        broken.oneshot(job).await.unwrap_err();

        let replicated = RedisConfig::new(self.redis.url()).with_wait(1, Duration::from_millis(50));
        let store = RedisStore::connect(replicated).await.unwrap();
        self.wait_until_scraped("campanile_redis_shortfalls_total").await;
        let grant = Grant { token: FencingToken::new(1).unwrap(), owner: Owner::new(1).unwrap() };
        let (fingerprint, reply, details) = (None, None, None);
        let operation = Operation::Complete { grant, attempt: 1, fingerprint, reply, details };
        let key = StoreKey::new("direct".try_into().unwrap(), &IdempotencyKey::new("w").unwrap());
        let retention = Retention::default();
        store.apply(Command { key, operation, retention }).await.unwrap();
        self.wait_for(rise).await;
    }

    /// A Redis that keeps nothing on disk restarts, and is then flushed.
    pub(crate) async fn lost_data(&self) {
        let mut server = RedisServer::start().unwrap();
        let patient = RedisConfig::new(server.url()).with_command_timeout(Duration::from_secs(5));
        let store = RedisStore::connect(patient).await.unwrap();
        let layer = IdempotencyLayer::new(store, config("volatile"), job_key()).unwrap();
        let volatile = service(layer, &self.gate);
        // Again if it is refused: that a setting is safe again is seen within a second.
        let run = async |id: &str| {
            run_job(volatile.clone(), Job::new(id, Does::Succeed).request()).await.unwrap();
        };
        let completions =
            r#"campanile_redis_data_losses_total{campanile_redis_loss="completions"}"#;
        let namespace = r#"campanile_redis_data_losses_total{campanile_redis_loss="namespace"}"#;
        self.wait_until_scraped(completions).await;
        run("completed").await;
        let rise = self.rise(&[completions, namespace]);
        server.restart().unwrap();
        run("after the restart").await;
        self.wait_for(rise).await;

        let unsafe_settings = "campanile_redis_unsafe_settings_total";
        let rise = self.rise(&[unsafe_settings]);
        server
            .cli(&["CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "volatile-lru"])
            .unwrap();
        server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
        volatile.clone().oneshot(Job::new("refused", Does::Succeed).request()).await.unwrap_err();
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
        server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
        self.wait_for(rise).await;

        let rise = self.rise(&[namespace]);
        server.cli(&["FLUSHALL"]).unwrap();
        let mut risen = std::pin::pin!(self.wait_for(rise));
        // The connection continues, so the loss is found by one of the next records.
        while timeout(Duration::from_millis(100), &mut risen).await.is_err() {
            run("after the flush").await;
        }
    }
}
