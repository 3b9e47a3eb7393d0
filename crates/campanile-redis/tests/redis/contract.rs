//! The contract that every store must keep.

use campanile_test::contract::{self, RealTime};

use crate::support::server_and_store;

#[tokio::test]
async fn store_contract_holds_on_single_server() {
    let (_server, store) = server_and_store().await;
    contract::run(&store, &RealTime).await;
    contract::run_expire(&store, &RealTime).await;
}
