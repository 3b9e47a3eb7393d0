//! A setting of the mock cluster that rdkafka's safe interface does not offer.

#![allow(unsafe_code)]

use rdkafka::ClientContext;
use rdkafka::bindings::{
    rd_kafka_handle_mock_cluster, rd_kafka_mock_group_initial_rebalance_delay_ms,
};
use rdkafka::client::Client;

/// Makes a new group assign its partitions at once instead of after 3 s. Does nothing for a client
/// without a mock cluster.
pub(super) fn remove<C: ClientContext>(client: &Client<C>) {
    // SAFETY: `client` is borrowed, so its handle is alive for both calls. The mock cluster
    // returned by the first call (or null) belongs to that handle and lives as long. The second
    // call takes the cluster's own lock.
    unsafe {
        let cluster = rd_kafka_handle_mock_cluster(client.native_ptr());
        if !cluster.is_null() {
            rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 0);
        }
    }
}
