//! Script calls, each for several keys.

use std::ops::Range;

use campanile_core::{Command, Namespace, StoreKey};
use redis::{Cmd, RedisWrite, ServerErrorKind, Value};

use crate::bucket::Buckets;
use crate::connection::ConnectionHandle;
use crate::failure::{self, Failure};
use crate::key::write_entry_key;
use crate::script::{Script, Scripts, SharedArgs};

/// The most keys of one call. A longer script would block other clients for longer and save little.
pub(crate) const MAX_KEYS: usize = 64;

/// Commands of a batch that share one script call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) shared: SharedArgs,
    /// The bucket of all keys. Set only in a cluster, where they must share one.
    bucket: Option<u8>,
    members: Vec<Member>,
}

/// A command of the call.
#[derive(Clone, Debug)]
struct Member {
    /// The index of the command in the batch.
    index: usize,
    /// The range of its item in the plan's `arguments`.
    item: Range<usize>,
    /// The range of the details of its grant, which follow all items.
    details: Range<usize>,
}

/// The calls that run commands of a batch with distinct keys.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    batch: &'a [Command],
    pub(crate) calls: Vec<Call>,
    /// The items and details of all calls, concatenated.
    arguments: Vec<u8>,
    /// The commands with an operation that this version does not support.
    pub(crate) unsupported: Vec<usize>,
}

impl<'a> Plan<'a> {
    /// Groups these commands of the batch by the arguments that they share and, in a cluster, by
    /// bucket (`cluster_buckets`).
    pub(crate) fn new(
        batch: &'a [Command],
        indices: &[usize],
        cluster_buckets: Option<Buckets>,
    ) -> Self {
        const TYPICAL_ARGUMENT_BYTES: usize = 128;
        let arguments = Vec::with_capacity(indices.len() * TYPICAL_ARGUMENT_BYTES);
        let mut plan = Self { batch, calls: Vec::new(), arguments, unsupported: Vec::new() };
        for &index in indices {
            let arguments = &mut plan.arguments;
            let start = arguments.len();
            let Some(shared) = SharedArgs::split(&batch[index], arguments) else {
                plan.unsupported.push(index);
                continue;
            };
            let item = start..arguments.len();
            SharedArgs::write_details(&batch[index].operation, arguments);
            let member = Member { index, details: item.end..arguments.len(), item };
            let key = &batch[index].key;
            let bucket = cluster_buckets.map(|buckets| buckets.of(key.digest()));
            let has_room = |call: &&mut Call| {
                call.bucket == bucket
                    && call.shared == shared
                    && call.members.len() < MAX_KEYS
                    && call.namespace(batch) == key.namespace()
            };
            match plan.calls.iter_mut().find(has_room) {
                Some(call) => call.members.push(member),
                None => {
                    let mut members = Vec::with_capacity(indices.len().min(MAX_KEYS));
                    members.push(member);
                    plan.calls.push(Call { shared, bucket, members });
                }
            }
        }
        plan
    }

    /// Runs one of the calls. If the server does not have the script cached, as after a restart or
    /// a `SCRIPT FLUSH`, sends its text.
    pub(crate) async fn run(
        &self,
        call: &Call,
        scripts: &Scripts,
        buckets: Buckets,
        handle: &ConnectionHandle,
        asking: bool,
    ) -> Result<Value, Failure> {
        let Script { text, hash } = scripts.get(call.shared.verb);
        let by_hash = self.encode(call, buckets, "EVALSHA", hash);
        let mut reply = handle.send(&by_hash, asking).await;
        if matches!(&reply, Ok(Value::ServerError(e)) if e.kind() == Some(ServerErrorKind::NoScript))
        {
            tracing::debug!(script = ?call.shared.verb, "script not cached; sending its text");
            let by_text = self.encode(call, buckets, "EVAL", text);
            reply = handle.send(&by_text, asking).await;
        }
        failure::check_reply(reply)
    }

    fn encode(&self, call: &Call, buckets: Buckets, name: &str, script: &str) -> Cmd {
        // Name, script, number of keys, up to four shared arguments.
        const MAX_LEADING_ARGS: usize = 7;
        const TYPICAL_KEY_BYTES: usize = 48; // in a typical namespace
        const LEADING_BYTES: usize = 64; // without the script
        let count = call.members.len();
        let arguments = |range: &Range<usize>| &self.arguments[range.clone()];
        let own_bytes: usize =
            call.members.iter().map(|member| member.item.len() + member.details.len()).sum();
        let bytes = LEADING_BYTES + script.len() + count * TYPICAL_KEY_BYTES + own_bytes;
        let mut cmd = Cmd::with_capacity(MAX_LEADING_ARGS + 3 * count, bytes);
        cmd.arg(name).arg(script).arg(count);
        let mut key = Vec::with_capacity(TYPICAL_KEY_BYTES);
        for member in &call.members {
            key.clear();
            write_entry_key(&mut key, &self.batch[member.index].key, buckets);
            cmd.write_arg(&key);
        }
        call.shared.write(&mut cmd);
        call.members.iter().for_each(|member| cmd.write_arg(arguments(&member.item)));
        if call.shared.has_details() {
            call.members.iter().for_each(|member| cmd.write_arg(arguments(&member.details)));
        }
        cmd
    }
}

impl Call {
    /// The namespace of all keys.
    pub(crate) fn namespace<'a>(&self, batch: &'a [Command]) -> &'a Namespace {
        self.first_key(batch).namespace()
    }

    /// The first key.
    pub(crate) fn first_key<'a>(&self, batch: &'a [Command]) -> &'a StoreKey {
        &batch[self.members[0].index].key
    }

    pub(crate) fn has_many_keys(&self) -> bool {
        self.members.len() > 1
    }

    /// Splits the call into one call for each key.
    pub(crate) fn split_by_key(&self) -> Vec<Self> {
        let Self { shared, bucket, ref members } = *self;
        let single = |member: &Member| Self { shared, bucket, members: vec![member.clone()] };
        members.iter().map(single).collect()
    }

    /// The indices of the call's commands in the batch.
    pub(crate) fn indices(&self) -> impl Iterator<Item = usize> {
        self.members.iter().map(|member| member.index)
    }
}

#[cfg(test)]
mod tests;
