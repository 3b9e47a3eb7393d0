//! The permissions of a server's user.

use campanile_core::{IdempotencyKey, Namespace, StoreKey};
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, cmd, pipe};

use super::report::is_forbidden;
use crate::RedisConfig;
use crate::key::{bucket_count_key, write_entry_key};
use crate::wait::DurabilityLevel;

/// A script that checks whether one command is allowed. A command that the server does not know is
/// not allowed. The command must be complete: Redis 7.0 crashes on an incomplete one.
const ACL_CHECK_SCRIPT: &str = "local is_known, is_allowed = pcall(redis.acl_check_cmd, unpack(ARGV)) \
     return is_known and is_allowed and 1 or 0";

/// What the user may not do.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct DeniedPermissions {
    /// The commands that are not allowed.
    pub(super) commands: Vec<String>,
    /// The keys that are not allowed, of the namespaces that the store is for.
    pub(super) keys: Vec<String>,
    /// Whether some namespaces are not allowed, if the namespaces of the store are not configured.
    pub(super) has_denied_namespaces: bool,
}

/// Asks the server about everything that the store will do.
pub(super) async fn query_denied(
    connection: &mut MultiplexedConnection,
    config: &RedisConfig,
) -> RedisResult<DeniedPermissions> {
    let mut denied = DeniedPermissions::default();
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
    without_keys.extend(config.durability.map(|durability| match durability.level {
        DurabilityLevel::Memory => command("WAIT 0 0"),
        DurabilityLevel::Disk => command("WAITAOF 0 0 0"),
    }));
    without_keys.extend(config.is_cluster().then(|| command("ASKING")));
    add_denied_commands(connection, &without_keys, &mut denied).await?;

    let sample = [Namespace::try_from("campanile-check").expect("of allowed characters")];
    let is_known = !config.namespaces.is_empty();
    let namespaces = if is_known { &*config.namespaces } else { &sample };
    for namespace in namespaces {
        let count_key = bucket_count_key(namespace).into_bytes();
        let entry = entry_key(namespace, config);
        let is_permitted =
            is_allowed(connection, &count_key).await? && is_allowed(connection, &entry).await?;
        match (is_permitted, is_known) {
            (true, _) => {
                add_denied_commands(connection, &commands_on_keys(&count_key, &entry), &mut denied)
                    .await?
            }
            (false, true) => {
                denied.keys.push(format!("campanile:{{{namespace}}} and {{{namespace}:*"))
            }
            (false, false) => denied.has_denied_namespaces = true,
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
fn commands_on_keys(count_key: &[u8], entry: &[u8]) -> [Words; 5] {
    let with = |before: &str, key: &[u8], after: &str| {
        let mut words = command(before);
        words.push(key.to_vec());
        words.extend(after.split_terminator(' ').map(|word| word.as_bytes().to_vec()));
        words
    };
    [
        with("GET", count_key, ""),
        with("SET", count_key, "16 NX GET"),
        with("GET", entry, ""),
        with("MGET", entry, ""),
        with("SET", entry, "entry NX GET PX 1"),
    ]
}

/// The key of an arbitrary entry in this namespace.
fn entry_key(namespace: &Namespace, config: &RedisConfig) -> Vec<u8> {
    let key = IdempotencyKey::new("some").expect("not empty");
    let mut name = Vec::new();
    write_entry_key(
        &mut name,
        &StoreKey::new(namespace.clone(), &key),
        config.buckets().expect("checked"),
    );
    name
}

/// Checks whether scripts may read and write this key.
async fn is_allowed(connection: &mut MultiplexedConnection, key: &[u8]) -> RedisResult<bool> {
    let words = [b"EVALSHA".as_slice(), b"x", b"1", key];
    cmd("EVAL").arg(ACL_CHECK_SCRIPT).arg(0).arg(&words).query_async(connection).await
}

/// Adds the commands that the user may not send to `denied`.
async fn add_denied_commands(
    connection: &mut MultiplexedConnection,
    commands: &[Words],
    denied: &mut DeniedPermissions,
) -> RedisResult<()> {
    let mut pipeline = pipe();
    for words in commands {
        pipeline.cmd("EVAL").arg(ACL_CHECK_SCRIPT).arg(0).arg(words);
    }
    let answers: Vec<bool> = pipeline.query_async(connection).await?;
    for (words, is_allowed) in commands.iter().zip(answers) {
        if !is_allowed {
            denied.commands.push(String::from_utf8_lossy(&words[0]).into_owned());
        }
    }
    Ok(())
}
