//! The network between the consumers and a store.

use std::time::Duration;

use campanile_test::Proxy;
use campanile_test::history::{FaultKind, Peer};

use super::RECONNECT;
use crate::faults::Injector;

/// How long a client may take to notice that a connection is dead, and to open another: each call that waits
/// for an answer ends after the command timeout, and so does its repetition on a second connection.
const NOTICED: Duration = Duration::from_secs(3);

/// Injects a random fault, which lasts up to one and a half times as long as a lock.
pub(super) fn inject(proxy: &Proxy, injector: &mut Injector<'_>) {
    let delay = injector.millis(20..300);
    let (name, fault): (_, &dyn Fn()) = match injector.rng.u8(..5) {
        0 => ("network delayed", &|| proxy.delay(delay)),
        1 => ("requests lost", &|| proxy.swallow_requests()),
        2 => ("replies lost", &|| proxy.swallow_replies()),
        3 => ("network cut", &|| proxy.cut()),
        _ => return forget_connections(proxy, injector),
    };
    let kind = FaultKind::NetworkCut { process: None, peer: Peer::Store };
    injector.inject(name, &kind, RECONNECT, |injector| {
        fault();
        injector.sleep(100..9_000);
        proxy.heal().unwrap();
    });
}

/// Drops the connections, as a load balancer drops idle ones: neither side learns of it.
fn forget_connections(proxy: &Proxy, injector: &mut Injector<'_>) {
    let kind = FaultKind::NetworkCut { process: None, peer: Peer::Store };
    injector.inject("connections forgotten", &kind, NOTICED, |_| proxy.forget_connections());
}
