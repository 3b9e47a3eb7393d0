//! Delivers a script call to the server that has its keys, also when the keys move meanwhile.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::{Answer, Command, Namespace};
use campanile_idempotency::StoreError;
use futures_util::future::join_all;
use redis::{Cmd, RedisError, ServerError, Value};
use tokio::time::Instant;

use crate::call::{Call, Plan};
use crate::check::Unmet;
use crate::connection::Link;
use crate::failure::{self, Failure};
use crate::key::{buckets_slot, slot};
use crate::namespace::Marker;
use crate::reply;
use crate::store::Inner;
use crate::topology::{Address, Cluster, Node, Route, Topology};

/// The maximum number of redirections for a command. A cluster sends one for each move of a slot,
/// and a second while the move is under way.
const REDIRECTIONS: u8 = 5;

/// Delivers the calls of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Delivery<'a> {
    pub(crate) store: &'a Inner,
    pub(crate) topology: &'a Topology,
    pub(crate) commands: &'a [Command],
}

/// The outcome of commands that were sent together.
pub(crate) struct Delivered {
    /// The indices of the commands in the batch.
    pub(crate) indices: Vec<usize>,
    /// The answers, and the connection that returned them.
    pub(crate) outcome: Result<(Vec<Result<Answer, StoreError>>, Link), StoreError>,
}

/// What is sent to a server.
enum Errand<'a> {
    Script(&'a Plan<'a>, &'a Call),
    Command(Cmd),
}

impl Delivery<'_> {
    /// Delivers a call. If its slot is being moved to another node of the cluster, its keys may be
    /// spread over both nodes, and each key is delivered in a call of its own.
    pub(crate) async fn deliver(&self, plan: &Plan<'_>, call: &Call) -> Vec<Delivered> {
        let singles = match self.run(plan, call).await {
            Err(Failure::Ask(_) | Failure::Split(_)) if call.is_several() => call.singles(),
            outcome => return vec![self.delivered(call, outcome)],
        };
        join_all(singles.iter().map(|single| self.deliver_single(plan, single))).await
    }

    async fn deliver_single(&self, plan: &Plan<'_>, call: &Call) -> Delivered {
        self.delivered(call, self.run(plan, call).await)
    }

    fn delivered(&self, call: &Call, outcome: Result<(Value, Link), Failure>) -> Delivered {
        let commands = || call.indices().map(|index| &self.commands[index]);
        let outcome = outcome.and_then(|(value, link)| {
            let answers = reply::answers(value, call.shared.verb, commands())?;
            self.store.witness.answered(&link, commands(), &answers);
            Ok((answers, link))
        });
        Delivered { indices: call.indices().collect(), outcome: outcome.map_err(StoreError::from) }
    }

    async fn run(&self, plan: &Plan<'_>, call: &Call) -> Result<(Value, Link), Failure> {
        if let Some(cluster) = self.topology.cluster() {
            self.compare_in(cluster, call.namespace(self.commands)).await?;
        }
        let slot = slot(call.first(self.commands), self.store.buckets);
        self.send(slot, &Errand::Script(plan, call)).await
    }

    /// Sends the request to the server that has the slot. A connection that turns out to be broken
    /// (the server was restarted, a firewall dropped its state) or read-only (after a failover) is
    /// replaced. A request that it did not answer is sent once more over the new connection,
    /// because every command can be repeated.
    async fn send(&self, slot: u16, errand: &Errand<'_>) -> Result<(Value, Link), Failure> {
        let mut asked: Option<Address> = None;
        let (mut has_broken, mut redirections) = (false, 0);
        loop {
            let is_asking = asked.is_some();
            let route = match (self.topology.cluster(), asked.take()) {
                (Some(cluster), Some(address)) => Route::Node(cluster.named(address)),
                _ => self.topology.route(slot).map_err(refused(has_broken))?,
            };
            let mut way = Way::to(&route);
            let failure = match self.travel(&mut way, &route, errand, is_asking).await {
                Ok(arrived) => return Ok(arrived),
                Err(failure) => failure,
            };
            let is_several = matches!(errand, Errand::Script(_, call) if call.is_several());
            match (failure, self.topology.cluster()) {
                (Failure::Connection(error), _) => {
                    way.give_up(&error, has_broken);
                    if has_broken {
                        return Err(Failure::Connection(error));
                    }
                    has_broken = true;
                }
                (Failure::Moved(error), Some(cluster)) if redirections < REDIRECTIONS => {
                    let (slot, owner) = way.redirected(&error)?;
                    cluster.moved(slot, owner);
                    redirections += 1;
                }
                (Failure::Ask(error), Some(_)) if !is_several && redirections < REDIRECTIONS => {
                    asked = Some(way.redirected(&error)?.1);
                    redirections += 1;
                }
                (Failure::Final(error), _) => return Err(refused(has_broken)(error)),
                (failure, cluster) => {
                    if let (Failure::Down(_) | Failure::Moved(_), Some(cluster)) =
                        (&failure, cluster)
                    {
                        cluster.refresh();
                    }
                    return Err(failure);
                }
            }
        }
    }

    async fn travel(
        &self,
        way: &mut Way,
        route: &Route<'_>,
        errand: &Errand<'_>,
        asking: bool,
    ) -> Result<(Value, Link), Failure> {
        let link = route.link().await;
        way.link = link.as_ref().ok().cloned();
        let arrived = match link {
            Ok(link) => self.over(&link, errand, asking).await.map(|value| (value, link)),
            Err(error) => Err(Failure::Final(error)),
        };
        way.end();
        arrived
    }

    async fn over(&self, link: &Link, errand: &Errand<'_>, asking: bool) -> Result<Value, Failure> {
        let witness = &self.store.witness;
        let met = link.met.get_or_try_init(|| witness.meet(link)).await;
        if let Err(Unmet::Broken(error)) = met {
            return Err(Failure::Connection(error));
        }
        match errand {
            Errand::Script(plan, call) => {
                let Inner { scripts, buckets, .. } = self.store;
                if self.topology.cluster().is_none() {
                    self.compare_over(link, call.namespace(self.commands)).await?;
                }
                plan.run(call, scripts, *buckets, link, asking).await
            }
            Errand::Command(command) => failure::value(link.send(command, asking).await),
        }
    }

    /// Checks the namespace's bucket count over this connection, once.
    async fn compare_over(&self, link: &Link, namespace: &Namespace) -> Result<(), Failure> {
        if link.has_compared(namespace) {
            return Ok(());
        }
        let marker = Marker::new(namespace, self.store.buckets);
        let was_known = self.store.witness.knows(namespace);
        let mut first_used = failure::value(link.send(&marker.get(), false).await)?;
        let mut is_new = false;
        if first_used == Value::Nil {
            first_used = failure::value(link.send(&marker.set(), false).await)?;
            // Only one of several concurrent clients sets the count.
            is_new = first_used == Value::Nil;
        }
        marker.compare(&first_used).map_err(Failure::Final)?;
        self.store.witness.used(namespace, was_known && is_new, link.address());
        link.note_compared(namespace);
        Ok(())
    }

    /// Checks the namespace's bucket count in the cluster, once. When the count is checked again,
    /// the node that has it may be away; keys on other nodes do not wait for it.
    async fn compare_in(&self, cluster: &Cluster, namespace: &Namespace) -> Result<(), Failure> {
        let Some(is_known) = cluster.is_to_compare(namespace) else {
            return Ok(());
        };
        let marker = Marker::new(namespace, self.store.buckets);
        let slot = buckets_slot(namespace);
        let was_known = self.store.witness.knows(namespace);
        let asked = async {
            let (mut first_used, link) = self.send(slot, &Errand::Command(marker.get())).await?;
            let mut is_new = false;
            if first_used == Value::Nil {
                first_used = self.send(slot, &Errand::Command(marker.set())).await?.0;
                // Only one of several concurrent clients sets the count.
                is_new = first_used == Value::Nil;
            }
            self.store.witness.used(namespace, was_known && is_new, link.address());
            Ok(first_used)
        };
        match asked.await {
            Ok(first_used) => marker.compare(&first_used).map_err(Failure::Final)?,
            Err(_) if is_known => {}
            Err(failure) => return Err(failure),
        }
        cluster.note_compared(namespace);
        Ok(())
    }
}

/// Makes an error final, because a retry would not help. `was_sent`: an earlier try may have sent
/// the command.
fn refused(was_sent: bool) -> impl Fn(StoreError) -> Failure {
    move |error| Failure::Final(if was_sent { error.but_sent_before() } else { error })
}

/// A request in flight over a connection.
///
/// Dropping it without an answer discards the connection, whether the store's time limit or the
/// caller's has passed. The connection may lead nowhere, and a peer that has vanished stays silent
/// for many minutes.
pub(crate) struct Way {
    link: Option<Link>,
    /// The node of a cluster.
    node: Option<Arc<Node>>,
    since: Instant,
    has_ended: bool,
}

/// A call that is dropped sooner does not count against the node: its caller left it too little
/// time.
const PATIENCE: Duration = Duration::from_millis(50);

impl Way {
    fn to(route: &Route<'_>) -> Self {
        let node = match route {
            Route::Node(node) => Some(Arc::clone(node)),
            Route::Standalone(_) | Route::Sentinel(_) => None,
        };
        Self { link: None, node, since: Instant::now(), has_ended: false }
    }

    /// A request that is sent later over a connection that has already answered.
    pub(crate) fn over(link: &Link) -> Self {
        Self { link: Some(link.clone()), node: None, since: Instant::now(), has_ended: false }
    }

    /// Marks the request as answered or failed.
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
    }

    /// Discards the broken connection. If this happens again at once, the node is unavailable.
    fn give_up(&self, error: &RedisError, again: bool) {
        if let Some(link) = &self.link {
            link.discard(error);
        }
        if let Some(node) = self.node.as_ref().filter(|_| again) {
            node.is_missed(error);
        }
    }

    fn redirected(&self, error: &ServerError) -> Result<(u16, Address), Failure> {
        let host = self.link.as_ref().map_or("", Link::host);
        let target = error.details().and_then(|text| Address::redirected(text, host));
        target.ok_or_else(|| Failure::unexpected("a redirection without a valid address"))
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        const REASON: &str = "no answer in time";
        if self.has_ended {
            return;
        }
        if let Some(link) = &self.link {
            link.discard(&REASON);
        }
        if let Some(node) = self.node.as_ref().filter(|_| self.since.elapsed() >= PATIENCE) {
            node.is_missed(&REASON);
        }
    }
}
