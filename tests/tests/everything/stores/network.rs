//! The network between the consumers and a store.

use campanile_test::Proxy;
use campanile_test::history::{FaultKind, Peer};

use super::RECONNECT;
use crate::faults::Injector;

/// Injects a random fault, which lasts up to one and a half times as long as a lock.
pub(super) fn inject(proxy: &Proxy, injector: &mut Injector<'_>) {
    let delay = injector.millis(20..300);
    let (name, fault): (_, &dyn Fn()) = match injector.rng.u8(..4) {
        0 => ("network delayed", &|| proxy.delay(delay)),
        1 => ("requests lost", &|| proxy.swallow_requests()),
        2 => ("replies lost", &|| proxy.swallow_replies()),
        _ => ("network cut", &|| proxy.cut()),
    };
    let kind = FaultKind::NetworkCut { process: None, peer: Peer::Store };
    injector.inject(name, &kind, RECONNECT, |injector| {
        fault();
        injector.sleep(100..9_000);
        proxy.heal().unwrap();
    });
}
