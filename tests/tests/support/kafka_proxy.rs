//! A broker behind a proxy.

use std::net::Ipv4Addr;

use campanile_test::{KafkaServer, KafkaServerBuilder, Proxy, free_port};

/// Starts a broker that clients reach only through the proxy.
pub(crate) fn start_behind_proxy(builder: KafkaServerBuilder) -> (KafkaServer, Proxy) {
    let port = free_port().unwrap();
    let proxy = Proxy::to((Ipv4Addr::LOCALHOST, port)).unwrap();
    let kafka = builder
        .port(port)
        .property("advertised.listeners", &format!("PLAINTEXT://{}", proxy.addr()))
        .start()
        .unwrap();
    (kafka, proxy)
}
