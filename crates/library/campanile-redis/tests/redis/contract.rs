//! The contract that every store must keep.

use campanile_redis::RedisStore;
use campanile_test::contract::{self, RealTime};
use campanile_test::{RedisServer, RedisServerBuilder};

use crate::support::long_timeout;

async fn assert_contract_holds(server: RedisServerBuilder) {
    let server = server.start().unwrap();
    let store = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    contract::run(&store, &RealTime).await;
    contract::run_expire(&store, &RealTime).await;
}

#[tokio::test]
async fn store_contract_holds_on_single_server() {
    assert_contract_holds(RedisServer::builder()).await;
}

#[tokio::test]
async fn store_contract_holds_on_valkey() {
    assert_contract_holds(RedisServer::builder().valkey()).await;
}
