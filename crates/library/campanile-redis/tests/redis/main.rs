//! Tests of the store on real Redis servers.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod aof;
mod batches;
mod broken_entries;
mod cancellation;
mod check_permissions;
mod check_settings;
mod check_versions;
mod clock;
mod cluster;
mod connect;
mod contract;
mod differential;
mod dropped_connections;
mod durability;
mod failover;
mod inspect;
mod late_requests;
mod lost_replies;
mod memory;
mod namespaces;
mod outage;
mod permissions;
mod refusals;
mod rotation;
mod scan;
mod script_cache;
mod sentinel;
mod server_clock;
mod support;
mod tls;
mod wait_connections;
mod wait_replicas;
mod wait_settings;
mod wait_topologies;
