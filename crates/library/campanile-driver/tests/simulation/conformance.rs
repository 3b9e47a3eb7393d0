//! The simulated source keeps the contract of sources.

use campanile_driver::SourceContext;
use campanile_driver::source::Source;
use campanile_test::source::{self, SourceFixture};

use crate::cluster::Cluster;
use crate::history::History;

struct Simulated(Cluster);

impl SourceFixture for Simulated {
    fn join(&mut self, context: &SourceContext) -> Box<dyn Source> {
        let source = self.0.join(context.clone());
        self.assign();
        Box::new(source)
    }

    fn produce(&mut self, partition: i32, records: usize) {
        let mut state = self.0.state();
        let mut log = state.log(partition).to_vec();
        let next = log.last().map_or(0, |last| last + 1);
        log.extend((next..).take(records));
        // What the driver would do with them is not simulated.
        log.iter().for_each(|offset| state.history.handler_ended((partition, *offset), true));
        state.set_log(partition, log);
    }

    fn revoke(&mut self) {
        self.0.state().revoke(vec![0, 1], false);
    }

    fn assign(&mut self) {
        let mut state = self.0.state();
        [0, 1].into_iter().for_each(|partition| state.assign(partition));
    }

    fn committed(&mut self, partition: i32) -> Option<i64> {
        self.0.state().committed(partition)
    }
}

#[tokio::test(start_paused = true)]
async fn simulated_source_keeps_the_contract() {
    let cluster = Cluster::new(0, None, History::new(true, 1));
    cluster.stop_faults();
    [0, 1].into_iter().for_each(|partition| cluster.state().set_log(partition, Vec::new()));
    source::run(Simulated(cluster)).await;
}
