//! What a store keeps for a key, in words.

use std::fmt;
use std::time::{Duration, SystemTime};

use campanile_core::{ConfigError, Details, Entry, IdempotencyKey, State, StoreKey};
use campanile_idempotency::{Found, InspectStore};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::AdminError;
use crate::time::{At, Utc};

/// Reads the entry of a key. Nothing is written.
///
/// # Errors
/// Fails if the store does not answer, or is not configured as its data requires. A value that cannot
/// be read is no error: see [`Found::Unreadable`].
pub async fn inspect(store: &impl InspectStore, key: &StoreKey) -> Result<EntryReport, AdminError> {
    let inspected = store.inspect(key).await;
    let inspection =
        inspected.map_err(|error| AdminError::store("cannot read the entry", error))?;
    Ok(EntryReport::new(key.clone(), inspection.now, inspection.found))
}

/// Parses a [digest](StoreKey::digest): 32 hexadecimal digits, as reports show it.
///
/// # Errors
/// Fails if the text is no digest.
pub fn parse_digest(text: &str) -> Result<[u8; 16], ConfigError> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digest = is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten();
    digest.map(u128::to_be_bytes).ok_or_else(|| {
        ConfigError::new(format!("the digest {text:?} is not 32 hexadecimal digits"))
    })
}

/// What a store keeps for a key.
///
/// `Display` shows it in lines of words. It serializes as an object: `namespace`, `digest`, `state`
/// (`absent`, `unreadable`, `processing`, `retrying`, `completed` or `failed`), and what there is of
/// `key`, `reason`, `stuck`, `attempts`, `interrupts`, `give_ups`, `give_up_lock`, `permanent_failure`,
/// `released`, `token`, `created`, `granted`, `at`, `expires`, `error`, `steps` (their names),
/// `reply_bytes`, `process`, `record` and `trace`. Times are texts by RFC 3339. A key that is not UTF-8 is
/// escaped.
#[derive(Clone, Debug)]
pub struct EntryReport {
    key: StoreKey,
    name: Option<Name>,
    now: SystemTime,
    found: Found,
}

/// The idempotency key, as far as it is known.
#[derive(Clone, Debug)]
struct Name {
    text: Box<str>,
    is_whole: bool,
}

impl EntryReport {
    /// Creates the report of what was found under a key at `now`, by the store's clock.
    pub fn new(key: StoreKey, now: SystemTime, found: Found) -> Self {
        let mut report = Self { key, name: None, now, found };
        let bytes = report.entry().and_then(Entry::details).and_then(Details::key);
        let name = bytes.and_then(|bytes| IdempotencyKey::new(bytes.to_vec()));
        // Entries keep the beginning of a long key only.
        report.name =
            name.map(|name| Name { is_whole: report.is_key(&name), text: name.to_text().into() });
        report
    }

    /// Adds the idempotency key, which entries need not store. A key of another entry is ignored.
    #[must_use]
    pub fn with_key(mut self, key: &IdempotencyKey) -> Self {
        if self.is_key(key) {
            let text = key.to_text().into();
            self.name = Some(Name { text, is_whole: true });
        }
        self
    }

    /// Returns the key of the entry in the store.
    pub fn key(&self) -> &StoreKey {
        &self.key
    }

    /// Returns the store's clock.
    pub fn now(&self) -> SystemTime {
        self.now
    }

    /// Returns what was found.
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// Returns the entry, if there is one that can be read.
    pub fn entry(&self) -> Option<&Entry> {
        match &self.found {
            Found::Entry { entry, .. } => Some(entry),
            _ => None,
        }
    }

    /// Checks whether the entry is PROCESSING and its lock has expired, so that nobody processes it.
    /// The next delivery of the key takes it over.
    pub fn is_stuck(&self) -> bool {
        self.entry()
            .is_some_and(|entry| entry.state() == State::Processing && entry.at() <= self.now)
    }

    /// Checks whether the entry is PROCESSING and its lock has not expired.
    pub fn is_locked(&self) -> bool {
        let is_processing = |entry: &Entry| entry.state() == State::Processing;
        self.entry().is_some_and(is_processing) && !self.is_stuck()
    }

    /// Returns when the last lock was granted. `None` if that is unknown.
    ///
    /// It is derived from the fencing token, which is the store's clock at the grant except after a
    /// clock was set back.
    pub fn granted_at(&self) -> Option<SystemTime> {
        let entry = self.entry()?;
        let granted = SystemTime::UNIX_EPOCH + Duration::from_micros(entry.token().get());
        (entry.owner().is_some() && entry.created() <= granted && granted <= self.now)
            .then_some(granted)
    }

    /// Returns how long ago the key was completed or given up, or, in other states, how long ago its entry
    /// was created. `None` if there is no entry.
    pub fn age(&self) -> Option<Duration> {
        let entry = self.entry()?;
        let since = match entry.state() {
            State::Completed | State::Failed => entry.at(),
            State::Processing | State::Retrying => entry.created(),
        };
        Some(self.now.duration_since(since).unwrap_or_default())
    }

    /// Returns the idempotency key. Bytes that are not UTF-8 are escaped. `None` if it is not stored.
    pub fn name(&self) -> Option<String> {
        let Name { text, is_whole } = self.name.as_ref()?;
        Some(if *is_whole { text.to_string() } else { format!("{text}…") })
    }

    /// Returns the digest of the key, in hexadecimal digits.
    pub fn digest(&self) -> String {
        self.key.digest_hex()
    }

    fn is_key(&self, key: &IdempotencyKey) -> bool {
        StoreKey::new(self.key.namespace().clone(), key) == self.key
    }

    fn at(&self, time: SystemTime) -> At {
        At { time, now: self.now }
    }

    /// Describes the state in one line.
    pub(crate) fn summary(&self) -> String {
        let entry = match &self.found {
            Found::Entry { entry, .. } => entry,
            Found::Unreadable { reason } => return format!("unreadable: {reason}"),
            _ => return "no entry: never used, or expired".to_owned(),
        };
        let (at, attempt) = (self.at(entry.at()), entry.attempt());
        match entry.state() {
            State::Processing if self.is_stuck() => {
                format!("PROCESSING, stuck: its lock expired at {at}, and nobody has taken it over")
            }
            State::Processing if entry.is_give_up() => {
                format!("PROCESSING: is being given up, under a lock until {at}")
            }
            State::Processing => {
                format!("PROCESSING: attempt {attempt} has the lock until {at}, unless renewed")
            }
            State::Retrying if is_reopened(entry) => {
                format!("RETRYING: reopened by an operator at {at}")
            }
            State::Retrying if entry.has_permanent_failure() => {
                format!("RETRYING: failed permanently; is given up at the next delivery from {at}")
            }
            State::Retrying if entry.is_released() => {
                format!("RETRYING: released at {at}; the next delivery runs it")
            }
            State::Retrying if entry.at() <= self.now => {
                format!("RETRYING: due since {at}; the next delivery runs it")
            }
            State::Retrying => format!("RETRYING: the next attempt may start at {at}"),
            State::Completed => format!("COMPLETED at {at}"),
            State::Failed => format!("FAILED: given up at {at}"),
        }
    }

    /// Describes the entry in one line, for lists.
    pub fn to_line(&self) -> String {
        let name = self.name().unwrap_or_else(|| format!("digest {}", self.digest()));
        let mut line = format!("{name}  {}", self.summary());
        if let Some(entry) = self.entry() {
            line.push_str(&format!("  attempts {}", entry.attempt()));
            if let Some(record) = entry.details().and_then(Details::coordinates) {
                line.push_str(&format!("  record {record}"));
            }
            if let Some(error) = entry.error() {
                line.push_str(&format!("  error: {}", error.escape_debug()));
            }
        }
        printable(&line)
    }

    /// The lines of labels and values.
    fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines =
            vec![("key", self.name().unwrap_or_else(|| "not stored; see the digest".to_owned()))];
        lines.push(("entry", format!("{}/{}", self.key.namespace(), self.digest())));
        lines.push(("state", self.summary()));
        let Found::Entry { entry, expires_at } = &self.found else {
            return lines;
        };
        lines.push((
            "attempts",
            format!(
                "{} counted, {} interrupted, {} give-ups",
                entry.attempt(),
                entry.interrupts(),
                entry.give_ups()
            ),
        ));
        if let Some(granted) = self.granted_at() {
            lines.push(("granted", self.at(granted).to_string()));
        }
        if let Some(details) = entry.details() {
            let is_last = details.owner() == entry.owner() || entry.owner().is_none();
            let note = if is_last { "" } else { " (of an earlier grant)" };
            if let Some(process) = details.instance() {
                lines.push(("process", format!("{process}{note}")));
            }
            if let Some(record) = details.coordinates() {
                lines.push(("record", format!("{record}{note}")));
            }
            if let Some(trace) = details.trace() {
                lines.push(("trace", format!("{trace}{note}")));
            }
        }
        if let Some(error) = entry.error() {
            lines.push(("error", error.escape_debug().to_string()));
        }
        if let Some(steps) = entry.steps() {
            let names: Vec<_> = steps.names().collect();
            lines.push(("steps", names.join(", ").escape_debug().to_string()));
        }
        if let Some(reply) = entry.reply() {
            lines.push(("reply", format!("{} bytes", reply.len())));
        }
        lines.push(("token", entry.token().to_string()));
        lines.push(("created", self.at(entry.created()).to_string()));
        lines.push(("expires", self.at(*expires_at).to_string()));
        lines
    }
}

impl fmt::Display for EntryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (label, value)) in self.lines().into_iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{label:<9} {}", printable(&value))?;
        }
        Ok(())
    }
}

impl Serialize for EntryReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let utc = |time| Utc(time).to_string();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("namespace", self.key.namespace().as_str())?;
        map.serialize_entry("digest", &self.digest())?;
        if let Some(name) = self.name() {
            map.serialize_entry("key", &name)?;
        }
        let (entry, expires_at) = match &self.found {
            Found::Entry { entry, expires_at } => (entry, expires_at),
            Found::Unreadable { reason } => {
                map.serialize_entry("state", "unreadable")?;
                map.serialize_entry("reason", reason)?;
                return map.end();
            }
            _ => {
                map.serialize_entry("state", "absent")?;
                return map.end();
            }
        };
        map.serialize_entry("state", state_name(entry.state()))?;
        if entry.state() == State::Processing {
            map.serialize_entry("stuck", &self.is_stuck())?;
            map.serialize_entry("give_up_lock", &entry.is_give_up())?;
        }
        map.serialize_entry("attempts", &entry.attempt())?;
        map.serialize_entry("interrupts", &entry.interrupts())?;
        map.serialize_entry("give_ups", &entry.give_ups())?;
        if entry.state() == State::Retrying {
            map.serialize_entry("permanent_failure", &entry.has_permanent_failure())?;
            map.serialize_entry("released", &entry.is_released())?;
        }
        map.serialize_entry("token", &entry.token().get())?;
        map.serialize_entry("created", &utc(entry.created()))?;
        if let Some(granted) = self.granted_at() {
            map.serialize_entry("granted", &utc(granted))?;
        }
        map.serialize_entry("at", &utc(entry.at()))?;
        map.serialize_entry("expires", &utc(*expires_at))?;
        if let Some(error) = entry.error() {
            map.serialize_entry("error", &error)?;
        }
        if let Some(steps) = entry.steps() {
            map.serialize_entry("steps", &steps.names().collect::<Vec<_>>())?;
        }
        if let Some(reply) = entry.reply() {
            map.serialize_entry("reply_bytes", &reply.len())?;
        }
        if let Some(details) = entry.details() {
            if let Some(process) = details.instance() {
                map.serialize_entry("process", &process)?;
            }
            if let Some(record) = details.coordinates() {
                map.serialize_entry("record", &record.to_string())?;
            }
            if let Some(trace) = details.trace() {
                map.serialize_entry("trace", &trace.to_string())?;
            }
        }
        map.end()
    }
}

/// Checks whether the key is RETRYING because it was reopened, and was not granted since.
pub(crate) fn is_reopened(entry: &Entry) -> bool {
    entry.state() == State::Retrying && entry.attempt() == 0 && entry.owner().is_none()
}

/// The details of an entry may contain anything, such as commands to the terminal, or marks that reverse
/// the direction of what follows.
pub(crate) fn printable(text: &str) -> String {
    let is_mark = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.replace(|c: char| c.is_control() || is_mark(c), "\u{fffd}")
}

/// The name of a state, as JSON and options have it.
pub(crate) fn state_name(state: State) -> &'static str {
    match state {
        State::Processing => "processing",
        State::Retrying => "retrying",
        State::Completed => "completed",
        State::Failed => "failed",
    }
}
