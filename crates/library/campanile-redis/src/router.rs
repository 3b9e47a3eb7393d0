//! Routes a script call to the server that has its keys, also when the keys move meanwhile.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::{Answer, Command, Namespace};
use campanile_idempotency::StoreError;
use futures_util::future::join_all;
use redis::{Cmd, RedisError, ServerError, Value};
use tokio::time::Instant;

use crate::bucket_count::BucketCountKey;
use crate::call::{Call, Plan};
use crate::check::VerifyError;
use crate::connection::ConnectionHandle;
use crate::expire::ExpireCall;
use crate::failure::{self, Failure};
use crate::key::{bucket_count_slot, entry_slot};
use crate::reply;
use crate::store::StoreInner;
use crate::topology::{Address, Cluster, Node, Route, Topology};

/// The maximum number of redirections for a command. A cluster sends one for each move of a slot,
/// and a second while the move is under way.
pub(crate) const MAX_REDIRECTIONS: u8 = 5;

/// Routes the calls of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Router<'a> {
    pub(crate) store: &'a StoreInner,
    pub(crate) topology: &'a Topology,
    pub(crate) commands: &'a [Command],
}

/// The outcome of commands that were sent together.
pub(crate) struct CallOutcome {
    /// The indices of the commands in the batch.
    pub(crate) indices: Vec<usize>,
    /// The answers, and the connection that returned them.
    pub(crate) result: Result<(Vec<Result<Answer, StoreError>>, ConnectionHandle), StoreError>,
}

/// Where a request is sent.
pub(crate) enum Target {
    /// The server that has this slot.
    Slot(u16),
    /// This node of a cluster, also for keys of slots that it is importing.
    Node(Arc<Node>),
}

/// What is sent to a server.
enum Request<'a> {
    Script(&'a Plan<'a>, &'a Call),
    Command(Cmd),
    Reads(Reads<'a>),
    Expire(&'a ExpireCall<'a>),
}

/// Commands that only read keys of a namespace.
struct Reads<'a> {
    namespace: &'a Namespace,
    commands: &'a [Cmd],
    /// Whether the keys may belong to other nodes. A redirection is then the reply of its command.
    has_any_keys: bool,
}

impl Router<'_> {
    /// Sends commands that only read, in one pipeline. Returns a reply for each of them. The reply is
    /// an error if the value has another type; from a [`Target::Node`], also if another node has the
    /// key.
    pub(crate) async fn read(
        &self,
        target: &Target,
        namespace: &Namespace,
        commands: &[Cmd],
    ) -> Result<Vec<Value>, Failure> {
        if let Some(cluster) = self.topology.cluster() {
            self.check_buckets_in_cluster(cluster, namespace, false).await?;
        }
        let has_any_keys = matches!(target, Target::Node(_));
        let reads = Reads { namespace, commands, has_any_keys };
        match self.send(target, &Request::Reads(reads)).await? {
            (Value::Array(replies), _) => Ok(replies),
            _ => Err(Failure::unexpected("a pipeline did not return a list of replies")),
        }
    }

    /// Sends a call that changes when entries expire.
    pub(crate) async fn expire(&self, call: &ExpireCall<'_>) -> Result<Value, Failure> {
        if let Some(cluster) = self.topology.cluster() {
            self.check_buckets_in_cluster(cluster, call.namespace(), false).await?;
        }
        let target = Target::Slot(call.slot(self.store.buckets));
        Ok(self.send(&target, &Request::Expire(call)).await?.0)
    }

    /// Sends a call. If its slot is being moved to another node of the cluster, its keys may be
    /// spread over both nodes, and each key is sent in a call of its own.
    pub(crate) async fn dispatch(&self, plan: &Plan<'_>, call: &Call) -> Vec<CallOutcome> {
        let single_key_calls = match self.run(plan, call).await {
            Err(Failure::Ask(_) | Failure::TryAgain(_)) if call.has_many_keys() => {
                call.split_by_key()
            }
            result => return vec![self.call_outcome(call, result)],
        };
        join_all(single_key_calls.iter().map(|single| self.dispatch_single(plan, single))).await
    }

    /// Sends a key's part of a call that was split. The call may have been sent as a whole before.
    async fn dispatch_single(&self, plan: &Plan<'_>, call: &Call) -> CallOutcome {
        let CallOutcome { indices, result } = self.call_outcome(call, self.run(plan, call).await);
        CallOutcome { indices, result: result.map_err(StoreError::possibly_sent) }
    }

    fn call_outcome(
        &self,
        call: &Call,
        result: Result<(Value, ConnectionHandle), Failure>,
    ) -> CallOutcome {
        let commands = || call.indices().map(|index| &self.commands[index]);
        let result = result.and_then(|(value, handle)| {
            let answers = reply::decode_answers(value, call.shared.verb, commands())?;
            self.store.loss_detector.record_completions(&handle, commands(), &answers);
            Ok((answers, handle))
        });
        CallOutcome { indices: call.indices().collect(), result: result.map_err(StoreError::from) }
    }

    async fn run(
        &self,
        plan: &Plan<'_>,
        call: &Call,
    ) -> Result<(Value, ConnectionHandle), Failure> {
        if let Some(cluster) = self.topology.cluster() {
            self.check_buckets_in_cluster(cluster, call.namespace(self.commands), true).await?;
        }
        let slot = entry_slot(call.first_key(self.commands), self.store.buckets);
        self.send(&Target::Slot(slot), &Request::Script(plan, call)).await
    }

    /// Sends the request to its target. A connection that turns out to be broken
    /// (the server was restarted, a firewall dropped its state) or read-only (after a failover) is
    /// replaced. A request that it did not answer is sent once more over the new connection,
    /// because every command can be repeated.
    async fn send(
        &self,
        target: &Target,
        request: &Request<'_>,
    ) -> Result<(Value, ConnectionHandle), Failure> {
        let mut ask_target: Option<Address> = None;
        let (mut is_retry, mut redirections) = (false, 0);
        loop {
            let is_asking = ask_target.is_some() || matches!(target, Target::Node(_));
            let route = match (self.topology.cluster(), ask_target.take(), target) {
                (Some(cluster), Some(address), _) => Route::Node(cluster.node_at(address)),
                (_, _, Target::Node(node)) => Route::Node(Arc::clone(node)),
                (_, _, Target::Slot(slot)) => {
                    self.topology.route(*slot).map_err(final_failure(is_retry))?
                }
            };
            let mut guard = InFlightGuard::for_route(&route);
            let failure = match self.send_on_route(&mut guard, &route, request, is_asking).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            let has_many_keys = match request {
                Request::Script(_, call) => call.has_many_keys(),
                Request::Expire(call) => call.has_many_keys(),
                Request::Command(_) | Request::Reads(_) => false,
            };
            match (failure, self.topology.cluster()) {
                (Failure::Connection(error), _) => {
                    guard.discard_connection(&error, is_retry);
                    if is_retry {
                        return Err(Failure::Connection(error));
                    }
                    is_retry = true;
                }
                (Failure::Moved(error), Some(cluster)) if redirections < MAX_REDIRECTIONS => {
                    let (slot, master) = guard.redirect_target(&error)?;
                    cluster.record_move(slot, master);
                    redirections += 1;
                }
                (Failure::Ask(error), Some(_))
                    if !has_many_keys && redirections < MAX_REDIRECTIONS =>
                {
                    ask_target = Some(guard.redirect_target(&error)?.1);
                    redirections += 1;
                }
                (Failure::Final(error), _) => return Err(final_failure(is_retry)(error)),
                (failure, cluster) => {
                    if let (Failure::ClusterDown(_) | Failure::Moved(_), Some(cluster)) =
                        (&failure, cluster)
                    {
                        cluster.spawn_refresh();
                    }
                    return Err(failure);
                }
            }
        }
    }

    async fn send_on_route(
        &self,
        guard: &mut InFlightGuard,
        route: &Route<'_>,
        request: &Request<'_>,
        asking: bool,
    ) -> Result<(Value, ConnectionHandle), Failure> {
        let handle = route.connection().await;
        guard.handle = handle.as_ref().ok().cloned();
        let result = match handle {
            Ok(handle) => self.send_on(&handle, request, asking).await.map(|value| (value, handle)),
            Err(error) => Err(Failure::Final(error)),
        };
        guard.finish();
        result
    }

    async fn send_on(
        &self,
        handle: &ConnectionHandle,
        request: &Request<'_>,
        asking: bool,
    ) -> Result<Value, Failure> {
        let StoreInner { scripts, buckets, loss_detector, watch, .. } = self.store;
        let verify = async || {
            loss_detector.verify(handle).await?;
            watch.look(handle).await.map_err(VerifyError::Connection)
        };
        let verified = handle.verified.get_or_try_init(verify).await;
        if let Err(VerifyError::Connection(error)) = verified {
            return Err(Failure::Connection(error));
        }
        match request {
            Request::Script(plan, call) => {
                watch.check(handle, call.shared.verb).await?;
                if self.topology.cluster().is_none() {
                    self.check_buckets_on(handle, call.namespace(self.commands), true).await?;
                }
                plan.run(call, scripts, *buckets, handle, asking).await
            }
            Request::Reads(reads) => {
                if self.topology.cluster().is_none() {
                    self.check_buckets_on(handle, reads.namespace, false).await?;
                }
                reads.run(handle, asking).await
            }
            Request::Expire(call) => {
                if self.topology.cluster().is_none() {
                    self.check_buckets_on(handle, call.namespace(), false).await?;
                }
                let command = call.encode(self.store.buckets);
                failure::check_reply(handle.send(&command, asking).await)
            }
            Request::Command(command) => failure::check_reply(handle.send(command, asking).await),
        }
    }

    /// Checks the namespace's bucket count over this connection, unless it was checked lately. If none
    /// is recorded, records that of this store, unless it only reads.
    async fn check_buckets_on(
        &self,
        handle: &ConnectionHandle,
        namespace: &Namespace,
        may_record: bool,
    ) -> Result<(), Failure> {
        if handle.has_checked_buckets(namespace) {
            return Ok(());
        }
        let count_key = BucketCountKey::new(namespace, self.store.buckets);
        let was_known = self.store.loss_detector.has_namespace(namespace);
        let send = |command: Cmd| async move {
            let reply = failure::check_reply(handle.send(&command, false).await)?;
            Ok::<_, Failure>((reply, handle.clone()))
        };
        if let Some((recorded, _)) = count_key.get_or_set(may_record, send).await? {
            self.compare_buckets(&count_key, &recorded, was_known, handle)?;
            handle.set_buckets_checked(namespace);
        }
        Ok(())
    }

    /// Checks the namespace's bucket count in the cluster, once over each set of connections and after
    /// each change of the cluster. Once the store has compared the count, the node that has it may be
    /// unavailable; keys on other nodes do not wait for it.
    async fn check_buckets_in_cluster(
        &self,
        cluster: &Cluster,
        namespace: &Namespace,
        may_record: bool,
    ) -> Result<(), Failure> {
        if cluster.has_checked_buckets(namespace) {
            return Ok(());
        }
        let count_key = BucketCountKey::new(namespace, self.store.buckets);
        let target = &Target::Slot(bucket_count_slot(namespace));
        let was_known = self.store.loss_detector.has_namespace(namespace);
        let send =
            |command: Cmd| async move { self.send(target, &Request::Command(command)).await };
        match count_key.get_or_set(may_record, send).await {
            Ok(None) => return Ok(()),
            Ok(Some((recorded, handle))) => {
                self.compare_buckets(&count_key, &recorded, was_known, &handle)?;
            }
            Err(_) if was_known => {}
            Err(failure) => return Err(failure),
        }
        cluster.set_buckets_checked(namespace);
        Ok(())
    }

    /// Compares the recorded bucket count with this store's. `was_known`: the store had compared it
    /// before.
    fn compare_buckets(
        &self,
        count_key: &BucketCountKey<'_>,
        recorded: &Value,
        was_known: bool,
        handle: &ConnectionHandle,
    ) -> Result<(), Failure> {
        count_key.check(recorded).map_err(Failure::Final)?;
        let is_lost = was_known && *recorded == Value::Nil;
        self.store.loss_detector.record_namespace(count_key.namespace, is_lost, handle.address());
        Ok(())
    }
}

impl Reads<'_> {
    async fn run(&self, handle: &ConnectionHandle, asking: bool) -> Result<Value, Failure> {
        let replies = handle.send_all(self.commands, asking).await;
        let replies = replies.map_err(Failure::Connection)?;
        let is_answer = |error: &ServerError| match error.code() {
            "WRONGTYPE" => true,
            "MOVED" | "ASK" => self.has_any_keys,
            _ => false,
        };
        for reply in &replies {
            if let Value::ServerError(error) = reply
                && !is_answer(error)
            {
                return Err(Failure::classify(error.clone()));
            }
        }
        Ok(Value::Array(replies))
    }
}

/// Makes an error final, because a retry would not help. `was_sent`: an earlier try may have sent
/// the command.
fn final_failure(was_sent: bool) -> impl Fn(StoreError) -> Failure {
    move |error| Failure::Final(if was_sent { error.possibly_sent() } else { error })
}

/// A request in flight over a connection.
///
/// Dropping it without an answer discards the connection, whether the store's time limit or the
/// caller's has passed. The connection may lead nowhere, and a peer that has vanished stays silent
/// for many minutes.
pub(crate) struct InFlightGuard {
    handle: Option<ConnectionHandle>,
    /// The node of a cluster.
    node: Option<Arc<Node>>,
    since: Instant,
    is_finished: bool,
}

/// A call that is dropped sooner does not count against the server: its caller left it too little
/// time.
const MIN_UNANSWERED_TIME: Duration = Duration::from_millis(50);

impl InFlightGuard {
    fn for_route(route: &Route<'_>) -> Self {
        let node = match route {
            Route::Node(node) => Some(Arc::clone(node)),
            Route::Standalone(_) | Route::Sentinel(_) => None,
        };
        Self { handle: None, node, since: Instant::now(), is_finished: false }
    }

    /// A request that is sent later over a connection that has already answered.
    pub(crate) fn on_connection(handle: &ConnectionHandle) -> Self {
        Self { handle: Some(handle.clone()), node: None, since: Instant::now(), is_finished: false }
    }

    /// Marks the request as answered or failed.
    pub(crate) fn finish(&mut self) {
        self.is_finished = true;
    }

    /// Discards the broken connection. If this happens again at once, the node is unavailable.
    fn discard_connection(&self, error: &RedisError, is_retry: bool) {
        if let Some(handle) = &self.handle {
            handle.discard(error);
        }
        if let Some(node) = self.node.as_ref().filter(|_| is_retry) {
            node.mark_unavailable(error);
        }
    }

    fn redirect_target(&self, error: &ServerError) -> Result<(u16, Address), Failure> {
        let host = self.handle.as_ref().map_or("", ConnectionHandle::host);
        let target = error.details().and_then(|text| Address::parse_redirection(text, host));
        target.ok_or_else(|| Failure::unexpected("a redirection without a valid address"))
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        const REASON: &str = "no answer in time";
        if self.is_finished {
            return;
        }
        let is_silent = self.since.elapsed() >= MIN_UNANSWERED_TIME;
        if let Some(handle) = &self.handle {
            handle.discard(&REASON);
            if is_silent {
                handle.report_silence();
            }
        }
        if let Some(node) = self.node.as_ref().filter(|_| is_silent) {
            node.mark_unavailable(&REASON);
        }
    }
}

#[cfg(test)]
mod tests;
