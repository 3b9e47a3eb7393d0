//! The one setting of the mock cluster that rdkafka's safe interface does not have.

#![allow(unsafe_code)]

use rdkafka::ClientContext;
use rdkafka::bindings::{
    rd_kafka_handle_mock_cluster, rd_kafka_mock_group_initial_rebalance_delay_ms,
};
use rdkafka::client::Client;

/// Lets a new group assign its partitions at once, and not after 3 s. Does nothing to a client that
/// owns no mock cluster.
pub(super) fn remove<C: ClientContext>(client: &Client<C>) {
    // SAFETY: `client` is borrowed, so its handle is alive for both calls. The mock cluster that the
    // first one gives (or null) belongs to that handle and lives as long. The second one takes the
    // cluster's own lock.
    unsafe {
        let cluster = rd_kafka_handle_mock_cluster(client.native_ptr());
        if !cluster.is_null() {
            rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 0);
        }
    }
}
