//! The contract of all stores.

use campanile_test::contract::{self, RealTime};

use crate::support::Database;

#[tokio::test]
async fn store_keeps_the_contract_of_all_stores() {
    let database = Database::new().await;
    let store = database.store().await;
    contract::run(&store, &RealTime).await;
    contract::run_expire(&store, &RealTime).await;
}
