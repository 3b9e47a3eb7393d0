//! Connection settings shared by all servers of a store.

use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo};

use crate::connection::SharedConnection;
use crate::topology::Address;

/// How to connect to a server, whatever its address: user, database, TLS and connect timeout.
#[derive(Clone)]
pub(crate) struct Connector {
    template: ConnectionInfo,
    connect_timeout: Duration,
}

impl Connector {
    /// Uses the settings of `template` for every server.
    pub(crate) fn new(template: ConnectionInfo, connect_timeout: Duration) -> Self {
        Self { template, connect_timeout }
    }

    /// The connection info of the server at this address.
    pub(crate) fn connection_info(&self, address: &Address) -> ConnectionInfo {
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

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    pub(crate) fn connection(&self, address: &Address) -> Arc<SharedConnection> {
        SharedConnection::new(self.connection_info(address), self.connect_timeout)
    }
}
