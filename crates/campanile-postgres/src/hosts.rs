//! New connections to the host that accepts writes.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_postgres::Connect;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::net::lookup_host;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, Error};

use crate::tls::Connector;

/// If a host has not answered within this time, the next host is tried in parallel. A host that has
/// refused is retried after the same time, because it may be about to accept writes.
const HEAD_START: Duration = Duration::from_millis(200);

/// A host that has been silent for this time is asked again: it may have been restarted and know
/// nothing of the first attempt.
const AGAIN: Duration = Duration::from_secs(2);

/// Opens connections in tasks of their own, which continue even if no caller waits for them: a call
/// times out, and the next call gets its connection.
pub(crate) struct Hosts(Arc<Shared>);

struct Shared {
    each: Vec<Config>,
    connector: Connector,
    /// The statements at the start of each session.
    settings: String,
    limit: Duration,
    /// The host that most recently accepted writes.
    last: AtomicUsize,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<oneshot::Sender<Result<Made, Error>>>,
    /// The number of tasks that are opening a connection.
    at_work: usize,
    /// Connections that no caller was waiting for.
    made: Vec<Made>,
}

type Made = (Client, JoinHandle<()>);

impl Hosts {
    /// Each session starts with `settings` and must be open within `limit`.
    pub(crate) fn new(
        config: &Config,
        connector: Connector,
        settings: String,
        limit: Duration,
    ) -> Self {
        let (each, last, queue) = (apart(config), AtomicUsize::new(0), Mutex::default());
        Self(Arc::new(Shared { each, connector, settings, limit, last, queue }))
    }
}

impl Connect for Hosts {
    fn connect(
        &self,
        _: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<Made, Error>> + Send + '_>> {
        Box::pin(async {
            loop {
                let coming = match self.0.ask() {
                    Ok(made) => return Ok(made),
                    Err(coming) => coming,
                };
                // Otherwise the task timed out, or was dropped with its runtime: ask again.
                if let Ok(result) = coming.await {
                    return result;
                }
            }
        })
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an open connection, or queues for one that is being opened.
    fn ask(self: &Arc<Self>) -> Result<Made, oneshot::Receiver<Result<Made, Error>>> {
        let mut queue = self.queue();
        queue.made.retain(|(client, _)| !client.is_closed());
        if let Some(made) = queue.made.pop() {
            return Ok(made);
        }
        let (sender, receiver) = oneshot::channel();
        queue.waiting.retain(|waiting| !waiting.is_closed());
        queue.waiting.push_back(sender);
        if queue.waiting.len() > queue.at_work {
            queue.at_work += 1;
            let task = Task(Arc::clone(self));
            tokio::spawn(async move {
                if let Ok(result) = timeout(task.0.limit, task.0.race()).await {
                    task.0.queue().give(result);
                }
            });
        }
        Err(receiver)
    }

    /// Connects to the first host that accepts writes. Fails once every host has refused.
    async fn race(&self) -> Result<Made, Error> {
        let each: Vec<Config> = join_all(self.each.iter().map(at_each)).await.concat();
        let (count, first) = (each.len(), self.last.load(Ordering::Relaxed));
        let mut untried = (0..count).map(|index| (first + index) % count);
        // The hosts that were asked, and when each is asked again.
        let mut asked: Vec<(usize, Instant)> = Vec::with_capacity(count);
        let mut tries = FuturesUnordered::new();
        let mut next_is_due = true;
        loop {
            let now = Instant::now();
            if std::mem::take(&mut next_is_due)
                && let Some(host) = untried.next()
            {
                asked.push((host, now));
            }
            for (host, due) in &mut asked {
                if *due <= now {
                    *due = now + AGAIN;
                    tries.push(self.open(*host, &each[*host]));
                }
            }
            let due = asked.iter().map(|(_, due)| *due).min().unwrap_or(now);
            let due = if untried.len() > 0 { due.min(now + HEAD_START) } else { due };
            match timeout_at(due, tries.next()).await {
                Ok(Some((host, Ok(made)))) => {
                    self.last.store(host, Ordering::Relaxed);
                    return Ok(made);
                }
                Ok(Some((host, Err(error)))) => {
                    next_is_due = true;
                    if tries.is_empty() && untried.len() == 0 {
                        return Err(error);
                    }
                    for (_, due) in asked.iter_mut().filter(|(asked, _)| *asked == host) {
                        *due = Instant::now() + HEAD_START;
                    }
                }
                Ok(None) | Err(_) => next_is_due = true,
            }
        }
    }

    async fn open(&self, host: usize, config: &Config) -> (usize, Result<Made, Error>) {
        let opened = async {
            let (client, connection) = config.connect(Connector::clone(&self.connector)).await?;
            let task = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    let error = &error as &dyn StdError;
                    tracing::debug!(error, "connection to Postgres lost");
                }
            });
            // Not sent as `options` of the connection, because poolers reject those.
            client.batch_execute(&self.settings).await?;
            Ok((client, task))
        };
        (host, opened.await)
    }
}

impl Queue {
    /// Gives the result to the caller that has waited longest.
    fn give(&mut self, mut result: Result<Made, Error>) {
        while let Some(waiting) = self.waiting.pop_front() {
            match waiting.send(result) {
                Ok(()) => return,
                Err(back) => result = back,
            }
        }
        self.made.extend(result);
    }
}

/// A task that opens a connection.
struct Task(Arc<Shared>);

impl Drop for Task {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.at_work -= 1;
        // Each waiting caller needs a task. Drop the senders of the others, so that they ask again.
        let with_task = queue.at_work.min(queue.waiting.len());
        queue.waiting.truncate(with_task);
    }
}

/// Splits a host into one configuration for each address of its name, so that no address delays
/// another. If the lookup fails or takes too long, keeps the name alone; connecting then repeats
/// the lookup and reports its error.
async fn at_each(config: &Config) -> Vec<Config> {
    let alone = || vec![config.clone()];
    let ([Host::Tcp(name)], []) = (config.get_hosts(), config.get_hostaddrs()) else {
        return alone();
    };
    // The lookup needs a port but does not use it; the configuration has the actual one.
    let Ok(Ok(found)) = timeout(HEAD_START, lookup_host((&**name, 0))).await else {
        return alone();
    };
    let each: Vec<_> = found.map(|address| at(config, address.ip())).collect();
    if each.is_empty() { alone() } else { each }
}

fn at(config: &Config, address: IpAddr) -> Config {
    let mut one = config.clone();
    one.hostaddr(address);
    one
}

/// Splits the configuration into one for each host, so that no host delays another.
fn apart(config: &Config) -> Vec<Config> {
    let (hosts, addresses, ports) =
        (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let count = hosts.len().max(addresses.len());
    let fits = |len| [0, count].contains(&len);
    if count < 2
        || !fits(hosts.len())
        || !fits(addresses.len())
        || !(ports.len() < 2 || fits(ports.len()))
    {
        // An inconsistent configuration is rejected when it is used.
        return vec![config.clone()];
    }
    let one = |index: usize| {
        let mut one = without_hosts(config);
        match hosts.get(index) {
            Some(Host::Tcp(name)) => drop(one.host(name)),
            #[cfg(unix)]
            Some(Host::Unix(path)) => drop(one.host_path(path)),
            None => {}
        }
        addresses.get(index).map(|address| one.hostaddr(*address));
        ports.get(index).or(ports.first()).map(|port| one.port(*port));
        one
    };
    (0..count).map(one).collect()
}

fn without_hosts(config: &Config) -> Config {
    let mut one = Config::new();
    config.get_user().map(|user| one.user(user));
    config.get_password().map(|password| one.password(password));
    config.get_dbname().map(|name| one.dbname(name));
    config.get_options().map(|options| one.options(options));
    config.get_application_name().map(|name| one.application_name(name));
    config.get_connect_timeout().map(|timeout| one.connect_timeout(*timeout));
    config.get_tcp_user_timeout().map(|timeout| one.tcp_user_timeout(*timeout));
    config.get_keepalives_interval().map(|interval| one.keepalives_interval(interval));
    config.get_keepalives_retries().map(|retries| one.keepalives_retries(retries));
    one.keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .target_session_attrs(config.get_target_session_attrs())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts());
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_address_of_a_name_is_asked_by_itself_and_still_by_that_name() {
        let config: Config = "postgres://app@localhost:5433/app".parse().unwrap();
        let addresses: Vec<_> = lookup_host("localhost:5433").await.unwrap().collect();
        let each = at_each(&config).await;
        let asked: Vec<_> = each.iter().flat_map(Config::get_hostaddrs).copied().collect();
        assert_eq!(asked, addresses.iter().map(|address| address.ip()).collect::<Vec<_>>());
        for one in each {
            assert_eq!((one.get_hosts(), one.get_ports()), (config.get_hosts(), &[5433][..]));
        }
    }

    #[tokio::test]
    async fn a_host_without_a_name_that_is_known_is_left_to_its_connection() {
        for url in ["host=nowhere.invalid", "host=/run/postgresql", "host=db hostaddr=127.0.0.1"] {
            let config: Config = url.parse().unwrap();
            assert_eq!(at_each(&config).await, [config], "{url}");
        }
    }
}
