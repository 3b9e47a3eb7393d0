//! The contract that every store must keep.

use campanile_test::contract::{self, RealTime};

use crate::support::server_and_store;

#[tokio::test]
async fn the_store_keeps_the_contract_of_all_stores() {
    let (_server, store) = server_and_store().await;
    contract::run(&store, &RealTime).await;
}
