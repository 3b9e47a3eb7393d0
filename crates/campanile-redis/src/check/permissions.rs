//! The permissions of a server's user.

use campanile_core::{IdempotencyKey, Namespace, StoreKey};
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, cmd, pipe};

use super::seen::is_forbidden;
use crate::RedisConfig;
use crate::key::{buckets_key, write_entry_key};
use crate::wait::Reach;

/// A script that checks whether one command is allowed. A command that the server does not know is
/// not allowed. The command must be complete: Redis 7.0 crashes on an incomplete one.
const ASK: &str = "local is_known, is_allowed = pcall(redis.acl_check_cmd, unpack(ARGV)) \
     return is_known and is_allowed and 1 or 0";

/// What the user may not do.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Denied {
    /// The commands that are not allowed.
    pub(super) commands: Vec<String>,
    /// The keys that are not allowed, of the namespaces that the store is for.
    pub(super) keys: Vec<String>,
    /// Whether some namespaces are not allowed, if the namespaces of the store are not configured.
    pub(super) is_limited: bool,
}

/// Asks the server about everything that the store will do.
pub(super) async fn denied(
    connection: &mut MultiplexedConnection,
    config: &RedisConfig,
) -> RedisResult<Denied> {
    let mut denied = Denied::default();
    match cmd("EVAL").arg("return 1").arg(0).exec_async(connection).await {
        Ok(()) => {}
        // Nothing else can be asked without `EVAL`.
        Err(error) if is_forbidden(&error) => {
            denied.commands.push("EVAL".into());
            return Ok(denied);
        }
        Err(error) => return Err(error),
    }
    let mut without_keys = vec![command("TIME"), command("EVALSHA x 0")];
    without_keys.extend(config.wait.map(|wait| match wait.reach {
        Reach::Memory => command("WAIT 0 0"),
        Reach::Disk => command("WAITAOF 0 0 0"),
    }));
    refused(connection, &without_keys, &mut denied).await?;

    let sample = [Namespace::try_from("campanile-check").expect("of allowed characters")];
    let is_known = !config.namespaces.is_empty();
    let namespaces = if is_known { &*config.namespaces } else { &sample };
    for namespace in namespaces {
        let marker = buckets_key(namespace).into_bytes();
        let entry = entry_key(namespace, config);
        let is_open =
            is_allowed(connection, &marker).await? && is_allowed(connection, &entry).await?;
        match (is_open, is_known) {
            (true, _) => refused(connection, &on_keys(&marker, &entry), &mut denied).await?,
            (false, true) => {
                denied.keys.push(format!("campanile:{{{namespace}}} and {{{namespace}:*"))
            }
            (false, false) => denied.is_limited = true,
        }
    }
    denied.commands.sort_unstable();
    denied.commands.dedup();
    Ok(denied)
}

type Words = Vec<Vec<u8>>;

fn command(text: &str) -> Words {
    text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// The commands that read and write these two keys.
fn on_keys(marker: &[u8], entry: &[u8]) -> [Words; 5] {
    let with = |before: &str, key: &[u8], after: &str| {
        let mut words = command(before);
        words.push(key.to_vec());
        words.extend(after.split_terminator(' ').map(|word| word.as_bytes().to_vec()));
        words
    };
    [
        with("GET", marker, ""),
        with("SET", marker, "16 NX GET"),
        with("GET", entry, ""),
        with("MGET", entry, ""),
        with("SET", entry, "entry NX GET PX 1"),
    ]
}

/// The key of an arbitrary entry in this namespace.
fn entry_key(namespace: &Namespace, config: &RedisConfig) -> Vec<u8> {
    let some = IdempotencyKey::new("some").expect("not empty");
    let mut name = Vec::new();
    write_entry_key(&mut name, &StoreKey::new(namespace.clone(), some), config.buckets);
    name
}

/// Checks whether scripts may read and write this key.
async fn is_allowed(connection: &mut MultiplexedConnection, key: &[u8]) -> RedisResult<bool> {
    let words = [b"EVALSHA".as_slice(), b"x", b"1", key];
    cmd("EVAL").arg(ASK).arg(0).arg(&words).query_async(connection).await
}

/// Adds the commands that the user may not send to `denied`.
async fn refused(
    connection: &mut MultiplexedConnection,
    commands: &[Words],
    denied: &mut Denied,
) -> RedisResult<()> {
    let mut asked = pipe();
    for words in commands {
        asked.cmd("EVAL").arg(ASK).arg(0).arg(words);
    }
    let answers: Vec<bool> = asked.query_async(connection).await?;
    for (words, is_allowed) in commands.iter().zip(answers) {
        if !is_allowed {
            denied.commands.push(String::from_utf8_lossy(&words[0]).into_owned());
        }
    }
    Ok(())
}
