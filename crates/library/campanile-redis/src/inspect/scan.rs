//! One page of a scan.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use campanile_core::{Entry, StoreKey};
use campanile_idempotency::{Found, ScanCursor, ScanFilter, ScanPage, StoreError};
use redis::{Cmd, Value, cmd, from_redis_value};

use super::cursor::{Position, invalid_cursor};
use super::{decode_found, decode_time, read_commands};
use crate::check::Info;
use crate::failure::Failure;
use crate::key::{entry_key_pattern, parse_entry_key};
use crate::router::{Router, Target};
use crate::topology::{Cluster, Node};

/// `SCAN` blocks the server for about a quarter of a millisecond for this many keys, and for less than a
/// millisecond if other processes use the same cores.
const KEYS_PER_PAGE: u32 = 250;

/// The length of an entry without its tail, which has all that is filtered by.
const HEADER_LEN: usize = 44;

/// An entry's name in Redis, and its key.
type Name = (Vec<u8>, StoreKey);

pub(super) async fn page(
    router: Router<'_>,
    filter: &ScanFilter,
    cursor: &ScanCursor,
) -> Result<ScanPage, StoreError> {
    let cluster = router.topology.cluster();
    let (position, masters) = locate(cluster, Position::decode(cursor)?).await?;
    let target = match masters.get(usize::from(position.master)) {
        Some(master) => Target::Node(Arc::clone(master)),
        None if cluster.is_none() && position.master == 0 => Target::Slot(0),
        None => return Err(invalid_cursor()),
    };
    let scan = Scan { router, target, filter };
    let Slice { now, mut busy, run_id, cursor, names } = scan.next_slice(position.cursor).await?;
    if !position.run_id.is_empty() && position.run_id != run_id {
        return Err(must_restart("the Redis server was restarted or replaced"));
    }
    let names = scan.select(names, now, &mut busy).await?;
    let (now, entries) = match names.is_empty() {
        true => (now, Vec::new()),
        false => scan.read(names, &mut busy).await?,
    };

    let slots = position.slots;
    let next = match (cursor, cluster) {
        (0, None) => None,
        (0, Some(cluster)) => {
            // A slot that was moved during the scan may have left a master before its turn, and come to
            // one after it.
            cluster.fetch_masters().await.map_err(StoreError::unavailable)?;
            check_slots(cluster, slots)?;
            let master = position.master + 1;
            let has_more = usize::from(master) < masters.len();
            has_more.then(|| Position { slots, master, ..Position::default() })
        }
        _ => Some(Position { cursor, run_id, ..position }),
    };
    Ok(ScanPage::new(now, entries, next.as_ref().map(Position::encode)).with_busy(busy))
}

/// Finds the masters of the cluster and where the scan continues.
async fn locate(
    cluster: Option<&Cluster>,
    position: Option<Position>,
) -> Result<(Position, Vec<Arc<Node>>), StoreError> {
    match (cluster, position) {
        (None, position) => Ok((position.unwrap_or_default(), Vec::new())),
        (Some(cluster), None) => {
            cluster.fetch_masters().await.map_err(StoreError::unavailable)?;
            let (masters, slots) = cluster.masters();
            Ok((Position { slots, ..Position::default() }, masters))
        }
        (Some(cluster), Some(position)) => {
            let masters = check_slots(cluster, position.slots)?;
            Ok((position, masters))
        }
    }
}

/// Checks that each slot of the cluster still has the same master as at the start of the scan.
fn check_slots(cluster: &Cluster, at_start: u64) -> Result<Vec<Arc<Node>>, StoreError> {
    let (masters, slots) = cluster.masters();
    if slots == at_start {
        Ok(masters)
    } else {
        Err(must_restart("the slots of the Redis cluster have other masters"))
    }
}

fn must_restart(reason: &str) -> StoreError {
    StoreError::unavailable(format!(
        "{reason} since this scan began, so it may have missed entries; start the scan again"
    ))
}

struct Scan<'a> {
    router: Router<'a>,
    target: Target,
    filter: &'a ScanFilter,
}

/// What a call of `SCAN` returned.
struct Slice {
    now: SystemTime,
    busy: Duration,
    run_id: Box<[u8]>,
    cursor: u64,
    names: Vec<Name>,
}

impl Scan<'_> {
    /// Sends commands. Returns the server's time before them, how long they took it, which includes the
    /// commands of others that came between them, and the replies.
    async fn send(
        &self,
        commands: impl IntoIterator<Item = Cmd>,
    ) -> Result<(SystemTime, Duration, std::vec::IntoIter<Value>), Failure> {
        let time = || std::iter::once(cmd("TIME"));
        let commands: Vec<_> = time().chain(commands).chain(time()).collect();
        let replies = self.router.read(&self.target, self.filter.namespace(), &commands).await?;
        let mut replies = replies.into_iter();
        let (start, end) = (decode_time(replies.next())?, decode_time(replies.next_back())?);
        // Zero, if the clock was set back meanwhile.
        Ok((start, end.duration_since(start).unwrap_or_default(), replies))
    }

    async fn next_slice(&self, cursor: u64) -> Result<Slice, Failure> {
        let mut scan = cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(entry_key_pattern(self.filter.namespace()));
        scan.arg("COUNT").arg(KEYS_PER_PAGE);
        let info = cmd("INFO").arg("server").take();
        let (now, busy, mut replies) = self.send([info, scan]).await?;
        let mut next = || replies.next().unwrap_or(Value::Nil);
        let info = from_redis_value::<String>(next()).map(Info::new);
        let info = info.map_err(|_| Failure::unexpected("INFO did not return a text"))?;
        let run_id = info.field("run_id").unwrap_or_default().as_bytes().into();
        let slice = from_redis_value::<(u64, Vec<Vec<u8>>)>(next());
        let (cursor, names) =
            slice.map_err(|_| Failure::unexpected("SCAN did not return a cursor and keys"))?;
        let key = |name: Vec<u8>| {
            let buckets = self.router.store.buckets;
            let key = parse_entry_key(&name, self.filter.namespace(), buckets)?;
            Some((name, key))
        };
        let names = names.into_iter().filter_map(key).collect();
        Ok(Slice { now, busy, run_id, cursor, names })
    }

    /// Reads the headers, and keeps what may match. Most entries do not, and have no details, but they
    /// may have a long reply.
    async fn select(
        &self,
        names: Vec<Name>,
        now: SystemTime,
        busy: &mut Duration,
    ) -> Result<Vec<Name>, Failure> {
        let selects_all = self.filter.states().is_empty() && self.filter.min_age().is_zero();
        if selects_all || names.is_empty() {
            return Ok(names);
        }
        let header = |(name, _): &Name| cmd("GETRANGE").arg(name).arg(0).arg(HEADER_LEN - 1).take();
        let (_, took, headers) = self.send(names.iter().map(header)).await?;
        *busy += took;
        let may_match = |header: &Value| match header {
            Value::BulkString(header) => {
                Entry::from_bytes(header).map_or(true, |entry| self.filter.matches(&entry, now))
            }
            _ => true,
        };
        let selected = names.into_iter().zip(headers).filter(|(_, header)| may_match(header));
        Ok(selected.map(|(name, _)| name).collect())
    }

    /// Reads these entries, and the time.
    async fn read(
        &self,
        names: Vec<Name>,
        busy: &mut Duration,
    ) -> Result<(SystemTime, Vec<(StoreKey, Found)>), Failure> {
        let reads = names.iter().flat_map(|(name, _)| read_commands(name));
        let (now, took, mut replies) = self.send(reads).await?;
        *busy += took;
        let mut entries = Vec::new();
        for (_, key) in names {
            let found = decode_found(replies.next(), replies.next())?;
            if is_selected(self.filter, &found, now) {
                entries.push((key, found));
            }
        }
        Ok((now, entries))
    }
}

/// Checks whether the filter selects what was found under a name. The entry may have changed since
/// its header was read.
fn is_selected(filter: &ScanFilter, found: &Found, now: SystemTime) -> bool {
    match found {
        Found::Absent => false,
        Found::Entry { entry, .. } => filter.matches(entry, now),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use campanile_core::{Namespace, State, step};

    use super::*;
    use crate::samples;

    #[test]
    fn entry_that_has_changed_or_expired_is_not_selected() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        let (entry, _) = step(None, &samples::acquire(), now);
        let found = Found::Entry { entry: entry.unwrap(), expires_at: now };
        let namespace = Namespace::try_from("payments").unwrap();
        let with_state = |state| ScanFilter::new(namespace.clone()).with_state(state);
        assert!(is_selected(&with_state(State::Processing), &found, now));
        assert!(!is_selected(&with_state(State::Completed), &found, now));
        assert!(!is_selected(&with_state(State::Processing), &Found::Absent, now));
        let unreadable = Found::Unreadable { reason: "other".into() };
        assert!(is_selected(&with_state(State::Completed), &unreadable, now));
    }
}
