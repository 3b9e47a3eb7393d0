//! Connection settings shared by all servers of a store.

use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo};

use crate::connection::Connections;
use crate::topology::Address;

/// How to connect to a server, whatever its address: user, database, TLS and connect timeout.
#[derive(Clone)]
pub(crate) struct Access {
    template: ConnectionInfo,
    connect_timeout: Duration,
}

impl Access {
    /// Uses the settings of `template` for every server.
    pub(crate) fn like(template: ConnectionInfo, connect_timeout: Duration) -> Self {
        Self { template, connect_timeout }
    }

    /// The connection info of the server at this address.
    pub(crate) fn info(&self, address: &Address) -> ConnectionInfo {
        let Address { host, port } = address.clone();
        let host = host.into();
        let addr = match self.template.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        self.template.clone().set_addr(addr)
    }

    pub(crate) fn connections(&self, address: &Address) -> Arc<Connections> {
        Connections::new(self.info(address), self.connect_timeout)
    }
}
