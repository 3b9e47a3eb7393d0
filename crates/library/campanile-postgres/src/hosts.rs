//! New connections to the host that accepts writes.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use deadpool_postgres::Connect;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::lookup_host;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error};

use crate::sessions::{RETRY_AFTER, Session, Sessions, Slot};
use crate::tls::Connector;
use crate::watch::SETTINGS;

/// If a host has not answered within this time, the next host is tried in parallel. A host that has
/// refused is retried after the same time, because it may be about to accept writes.
const HEAD_START: Duration = Duration::from_millis(200);

/// Opens the connections of a pool.
pub(crate) struct Hosts {
    hosts: Vec<Config>,
    connector: Connector,
    /// The statements at the start of each session; none for a connection that only checks.
    settings: String,
    sessions: Arc<Sessions>,
    /// The host that most recently accepted writes.
    last_writable: AtomicUsize,
}

impl Connect for Hosts {
    /// Connects once the server has few enough sessions of this pool.
    fn connect(
        &self,
        _: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<Connected, Error>> + Send + '_>> {
        Box::pin(async {
            let slot = self.sessions.slot().await;
            loop {
                let (client, mut task, session) = self.connect_first(slot.clone()).await?;
                if self.sessions.admit(&client, &session).await? {
                    return Ok((client, task.0.take().expect("taken once")));
                }
            }
        })
    }
}

type Connected = (Client, JoinHandle<()>);

impl Hosts {
    /// Each session starts with `settings`.
    pub(crate) fn new(
        config: &Config,
        connector: Connector,
        settings: String,
        sessions: Arc<Sessions>,
    ) -> Self {
        let (hosts, last_writable) = (per_host(config), AtomicUsize::default());
        Self { hosts, connector, settings, sessions, last_writable }
    }

    /// Connects to the first host that accepts writes. Fails once every host has refused.
    async fn connect_first(&self, slot: Slot) -> Result<Opened, Error> {
        let configs = join_all(self.hosts.iter().map(per_address)).await.concat();
        let (count, first) = (configs.len(), self.last_writable.load(Ordering::Relaxed));
        let mut next: VecDeque<_> = (0..count).map(|index| (first + index) % count).collect();
        let (mut attempts, mut refused) = (FuturesUnordered::new(), Vec::new());
        loop {
            if let Some(host) = next.pop_front() {
                let (config, slot) = (&configs[host], slot.clone());
                attempts.push(async move { (host, self.ask(config, slot).await) });
            }
            match timeout(HEAD_START, attempts.next()).await {
                Ok(Some((host, Ok(opened)))) => {
                    self.last_writable.store(host, Ordering::Relaxed);
                    return Ok(opened);
                }
                Ok(Some((_, Err(error)))) if attempts.is_empty() && next.is_empty() => {
                    return Err(error);
                }
                Ok(Some((host, Err(_)))) => refused.push(host),
                // Those that have refused may be about to accept writes.
                Ok(None) | Err(_) => next.extend(refused.drain(..)),
            }
        }
    }

    /// Connects to a host, and asks it again while it is silent.
    async fn ask(&self, config: &Config, slot: Slot) -> Result<Opened, Error> {
        let again = async {
            sleep(RETRY_AFTER).await;
            loop {
                match timeout(RETRY_AFTER, self.open(config, slot.clone())).await {
                    // The first attempt may have the last session.
                    Ok(Err(error)) if error.code() == Some(&SqlState::TOO_MANY_CONNECTIONS) => {
                        sleep(RETRY_AFTER).await;
                    }
                    Ok(result) => return result,
                    Err(_) => {}
                }
            }
        };
        tokio::select! {
            biased;
            result = self.open(config, slot.clone()) => result,
            result = again => result,
        }
    }

    async fn open(&self, config: &Config, slot: Slot) -> Result<Opened, Error> {
        let session = Arc::new(Session::new(&self.sessions, slot));
        let (client, task) = self.connect(config, &session).await?;
        let task = AbortOnDrop(Some(task));
        let process = session.identify(&client).await?;
        if !self.settings.is_empty() {
            // Not sent as `options` of the connection, because poolers reject those. One message is
            // one transaction, so nothing is set on a session of another connection.
            let text = format!("{}; {}; {SETTINGS}", require_process(process), self.settings);
            let rows = client.simple_query(&text).await?;
            self.sessions.watch.observe(&rows, &self.sessions.address);
        }
        Ok((client, task, session))
    }

    async fn connect(&self, config: &Config, session: &Arc<Session>) -> Result<Connected, Error> {
        #[cfg(test)]
        if let Some(simulated) = crate::simulation::connect(config).await {
            let (client, connection) = simulated?;
            return Ok((client, spawn(connection, session.clone())));
        }
        let (client, connection) = config.connect(Connector::clone(&self.connector)).await?;
        Ok((client, spawn(connection, session.clone())))
    }
}

/// The SQLSTATE of a session that is not the connection's own.
pub(crate) const FOREIGN_SESSION: &str = "CI003";

/// A statement that fails in another session than the one with this process.
fn require_process(process: u32) -> String {
    format!(
        "DO $$BEGIN IF pg_catalog.pg_backend_pid() <> {process} THEN \
            RAISE 'the session is not that of the connection' USING ERRCODE = '{FOREIGN_SESSION}'; \
        END IF; END$$"
    )
}

/// Runs a connection until it is closed.
fn spawn<S, T>(mut connection: Connection<S, T>, session: Arc<Session>) -> JoinHandle<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        let _session = session;
        while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
            match message {
                // The commit is not on a standby, although its call will be answered like any other.
                Ok(AsyncMessage::Notice(notice))
                    if notice.routine() == Some("SyncRepWaitForLSN") =>
                {
                    let notice = &notice as &dyn StdError;
                    tracing::warn!(
                        notice,
                        "a commit's wait for a standby was cancelled; closing the connection, so \
                         that its call is repeated and waits again"
                    );
                    return;
                }
                Ok(AsyncMessage::Notice(notice)) => {
                    tracing::info!("{}: {}", notice.severity(), notice.message());
                }
                Ok(_) => {}
                Err(error) => {
                    let error = &error as &dyn StdError;
                    tracing::debug!(error, "connection to Postgres lost");
                    return;
                }
            }
        }
    })
}

/// A connection that is not in use yet.
type Opened = (Client, AbortOnDrop, Arc<Session>);

struct AbortOnDrop(Option<JoinHandle<()>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.take().inspect(JoinHandle::abort);
    }
}

/// Splits a host into one configuration for each address of its name, so that no address delays
/// another. If the lookup fails or takes too long, keeps the name alone; connecting then repeats
/// the lookup and reports its error.
async fn per_address(config: &Config) -> Vec<Config> {
    let mut configs = Vec::new();
    if let ([Host::Tcp(name)], []) = (config.get_hosts(), config.get_hostaddrs()) {
        // The lookup needs a port but does not use it; the configuration has the actual one.
        let lookup = timeout(HEAD_START, lookup_host((&**name, 0))).await;
        let found = lookup.into_iter().flatten().flatten();
        configs.extend(found.map(|address| {
            let mut single = config.clone();
            single.hostaddr(address.ip());
            single
        }));
    }
    if configs.is_empty() {
        configs.push(config.clone());
    }
    configs
}

/// Splits the configuration into one for each host, so that no host delays another. A configuration that
/// is rejected when it is used, or has a setting that is not copied here, is not split.
fn per_host(config: &Config) -> Vec<Config> {
    let mut common = Config::new();
    config.get_user().map(|user| common.user(user));
    config.get_password().map(|password| common.password(password));
    config.get_dbname().map(|name| common.dbname(name));
    config.get_options().map(|options| common.options(options));
    config.get_application_name().map(|name| common.application_name(name));
    config.get_connect_timeout().map(|timeout| common.connect_timeout(*timeout));
    config.get_tcp_user_timeout().map(|timeout| common.tcp_user_timeout(*timeout));
    config.get_keepalives_interval().map(|interval| common.keepalives_interval(interval));
    config.get_keepalives_retries().map(|retries| common.keepalives_retries(retries));
    common
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .target_session_attrs(config.get_target_session_attrs())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts());
    let (names, addresses) = (config.get_hosts(), config.get_hostaddrs());
    let mut ports = config.get_ports();
    if let [port] = ports {
        common.port(*port);
        ports = &[];
    }
    let count = names.len().max(addresses.len());
    let add_host = |mut config: Config, index: usize| {
        match names.get(index) {
            Some(Host::Tcp(name)) => drop(config.host(name)),
            #[cfg(unix)]
            Some(Host::Unix(path)) => drop(config.host_path(path)),
            None => {}
        }
        addresses.get(index).map(|address| config.hostaddr(*address));
        ports.get(index).map(|port| config.port(*port));
        config
    };
    let is_consistent =
        [names.len(), addresses.len(), ports.len()].iter().all(|len| [0, count].contains(len));
    if count > 0 && is_consistent && (0..count).fold(common.clone(), add_host) == *config {
        (0..count).map(|index| add_host(common.clone(), index)).collect()
    } else {
        vec![config.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_split_with_their_addresses_and_ports() {
        let split = |config: &str| per_host(&config.parse().unwrap());
        let parse = |configs: &[&str]| -> Vec<Config> {
            configs.iter().map(|config| config.parse().unwrap()).collect()
        };
        assert_eq!(split("host=a,b user=app"), parse(&["host=a user=app", "host=b user=app"]));
        assert_eq!(split("host=a,b port=1"), parse(&["host=a port=1", "host=b port=1"]));
        assert_eq!(split("host=a,b port=1,2"), parse(&["host=a port=1", "host=b port=2"]));
        assert_eq!(
            split("host=a,b hostaddr=10.0.0.1,10.0.0.2"),
            parse(&["host=a hostaddr=10.0.0.1", "host=b hostaddr=10.0.0.2"])
        );
        assert_eq!(
            split("hostaddr=10.0.0.1,10.0.0.2"),
            parse(&["hostaddr=10.0.0.1", "hostaddr=10.0.0.2"])
        );
    }

    #[test]
    fn every_setting_is_copied_to_each_host() {
        let settings = "user=u password=p dbname=d options=o application_name=n connect_timeout=1 \
            tcp_user_timeout=2 keepalives=0 keepalives_idle=3 keepalives_interval=4 \
            keepalives_retries=5 sslmode=require sslnegotiation=direct channel_binding=require \
            target_session_attrs=read-write load_balance_hosts=random";
        let config = |host: &str| format!("host={host} {settings}").parse::<Config>().unwrap();
        assert_eq!(per_host(&config("a,b")), [config("a"), config("b")]);
    }

    #[test]
    fn single_host_and_inconsistent_configuration_are_not_split() {
        for config in [
            "user=app",
            "host=a",
            "host=a,b hostaddr=10.0.0.1",
            "host=a hostaddr=10.0.0.1,10.0.0.2",
            "host=a,b port=1,2,3",
            "host=a,b,c port=1,2",
        ] {
            let config: Config = config.parse().unwrap();
            assert_eq!(per_host(&config), [config]);
        }
    }

    #[tokio::test]
    async fn host_name_is_split_per_address_and_keeps_its_name() {
        let config: Config = "postgres://app@localhost:5433/app".parse().unwrap();
        let addresses: Vec<_> = lookup_host("localhost:5433").await.unwrap().collect();
        let mut configs = per_address(&config).await;
        // On a busy machine the lookup may take too long.
        for _ in 0..50 {
            if configs[0].get_hostaddrs().is_empty() {
                configs = per_address(&config).await;
            }
        }
        let found: Vec<_> = configs.iter().flat_map(Config::get_hostaddrs).copied().collect();
        assert_eq!(found, addresses.iter().map(|address| address.ip()).collect::<Vec<_>>());
        for single in configs {
            assert_eq!((single.get_hosts(), single.get_ports()), (config.get_hosts(), &[5433][..]));
        }
    }

    #[tokio::test]
    async fn host_without_resolvable_name_is_not_split() {
        for url in ["host=nowhere.invalid", "host=/run/postgresql", "host=db hostaddr=127.0.0.1"] {
            let config: Config = url.parse().unwrap();
            assert_eq!(per_address(&config).await, [config], "{url}");
        }
    }
}
