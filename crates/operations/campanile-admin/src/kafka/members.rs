//! The members of a consumer group, and their partitions.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};

use super::{Context, assignment};

/// The time limit of the request for a group's members. All brokers are asked, and the answer need not
/// wait for one that is down.
const MEMBERS_TIMEOUT: Duration = Duration::from_secs(2);

/// A topic and a partition of it.
pub(crate) type Partition = (String, i32);

/// What the brokers know of a group's members. Groups of Kafka's newer protocol are unknown: the request
/// describes them as dead.
#[derive(Default)]
pub(crate) struct Members {
    /// The state of the group, such as `Stable`. `None`: unknown.
    pub(crate) state: Option<String>,
    /// The number of members. `None`: unknown.
    pub(crate) count: Option<usize>,
    /// The member that each partition is assigned to.
    pub(crate) owners: BTreeMap<Partition, String>,
}

impl Members {
    /// Asks the brokers for at most this time, and for at most [`MEMBERS_TIMEOUT`].
    pub(crate) fn fetch(consumer: &BaseConsumer<Context>, group: &str, timeout: Duration) -> Self {
        let timeout = timeout.min(MEMBERS_TIMEOUT);
        let Ok(groups) = consumer.fetch_group_list(Some(group), timeout) else {
            return Self::default();
        };
        let found = groups.groups().iter().find(|found| found.name() == group);
        let Some(found) = found.filter(|found| !matches!(found.state(), "" | "Dead")) else {
            return Self::default();
        };
        let mut owners = BTreeMap::new();
        for member in found.members() {
            let host = member.client_host().trim_start_matches('/');
            let name = format!("{}@{host}", member.client_id());
            let assigned = assignment::decode(member.assignment().unwrap_or_default());
            owners.extend(assigned.into_iter().map(|partition| (partition, name.clone())));
        }
        Self { state: Some(found.state().to_owned()), count: Some(found.members().len()), owners }
    }
}
