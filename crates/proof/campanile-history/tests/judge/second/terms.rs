//! The terms of the rules.

use std::cmp::{max, min};
use std::collections::{BTreeMap, HashMap, HashSet};

use super::effects::{no_success, visible};
use super::read::{Answer, Entry, Fault, History, Record, Run, Time};

/// What never comes to pass.
pub(super) const NEVER: Time = Time::MAX;

/// From one time to another, both included. Only the first if the second is before it.
pub(super) type Interval = (Time, Time);

pub(super) struct Terms<'h> {
    pub(super) history: &'h History,
    pub(super) keys: BTreeMap<String, Key<'h>>,
    /// The key of each record that has one by its `sent`, or else by a run.
    pub(super) own_key: HashMap<&'h Record, &'h str>,
    /// The record that was copied, for each copy.
    pub(super) original: HashMap<&'h Record, &'h Record>,
    /// The records with a known key.
    pub(super) key_of_record: HashMap<&'h Record, String>,
    /// The answers that are not the answer of any run.
    pub(super) answers_of_no_run: Vec<&'h Answer>,
    /// When each record was finished.
    finished: HashMap<&'h Record, Time>,
}

/// What happened to a key.
#[derive(Default)]
pub(super) struct Key<'h> {
    /// Its sequence.
    pub(super) runs: Vec<KeyRun<'h>>,
    pub(super) entries: Vec<&'h Entry>,
    /// When its records were sent.
    pub(super) sent: Vec<Time>,
    pub(super) duplicates: Vec<Time>,
    pub(super) given_up: Vec<Time>,
    pub(super) reopened: Vec<Time>,
    pub(super) unlocked: Vec<Time>,
}

/// A run in the sequence of its key.
pub(super) struct KeyRun<'h> {
    pub(super) run: &'h Run,
    pub(super) answer: Option<&'h Answer>,
    pub(super) began_late: bool,
    pub(super) over: Time,
    /// The times of each `visible` of it, with `settings.transactions`.
    pub(super) visible: Vec<Time>,
    pub(super) invisible: bool,
    /// Whether its `end` with `ok` is no success.
    no_success: bool,
}

/// The parts of an unrenewed time, in the order of their causes.
pub(super) struct Unrenewed {
    pub(super) suspended: Time,
    pub(super) store_unavailable: Time,
    pub(super) network_cut: Time,
    pub(super) clock_stepped: Time,
}

pub(super) fn touch(a: Interval, b: Interval) -> bool {
    max(a.0, b.0) <= min(max(a.0, a.1), max(b.0, b.1))
}

/// Checks whether one of the times is between the begins of two runs.
pub(super) fn between(times: &[Time], p: &KeyRun<'_>, n: &KeyRun<'_>) -> bool {
    times.iter().any(|time| p.run.begin <= *time && *time <= n.run.begin)
}

/// Returns the length of what the intervals cover together of another one.
fn covered(intervals: impl Iterator<Item = Interval>, within: Interval) -> Time {
    let clipped = intervals.map(|(from, to)| (max(from, within.0), min(to, within.1)));
    let mut clipped: Vec<_> = clipped.filter(|(from, to)| from <= to).collect();
    clipped.sort_unstable();
    let (mut length, mut end) = (0, within.0);
    for (from, to) in clipped {
        length += max(0, to - max(from, end));
        end = max(end, to);
    }
    length
}

impl KeyRun<'_> {
    pub(super) fn success(&self) -> Option<Time> {
        let end = self.run.end.as_ref().filter(|end| end.how == "ok" && !self.no_success);
        end.map(|end| end.at)
    }

    /// Returns when the run was answered as processed, if it was.
    pub(super) fn processed(&self) -> Option<Time> {
        self.answer.filter(|answer| answer.outcome == "processed").map(|answer| answer.at)
    }

    /// Returns how the run ended, if it ended by then.
    pub(super) fn ended(&self, by: Time) -> Option<&str> {
        self.run.end.as_ref().filter(|end| end.at <= by).map(|end| &*end.how)
    }
}

impl<'h> Key<'h> {
    /// Returns the predecessor of a run, given by its place in the sequence.
    pub(super) fn predecessor(&self, n: usize) -> Option<&KeyRun<'h>> {
        let before = || self.runs[..n].iter().filter(|run| !run.began_late);
        let with_token = || before().rfind(|run| run.run.token.is_some());
        let has_token = self.runs[n].run.token.is_some();
        has_token.then(with_token).flatten().or_else(|| before().next_back())
    }

    /// Returns when its first record was sent, or 0 if none was, but at most this time.
    pub(super) fn first_sent(&self, at_most: Time) -> Time {
        min(self.sent.iter().min().copied().unwrap_or(0), at_most)
    }
}

impl Unrenewed {
    pub(super) fn sum(&self) -> Time {
        self.suspended + self.store_unavailable + self.network_cut + self.clock_stepped
    }
}

impl<'h> Terms<'h> {
    pub(super) fn new(history: &'h History) -> Self {
        let mut visible = visible(history);
        let no_success = no_success(history, &visible);
        let (answer_of_run, answers_of_no_run) = answers(history, &no_success);
        let (own_key, original) = (own_keys(history), originals(history));
        let key_of_record = keys_of_records(history, &own_key, &original);
        let mut terms = Self {
            history,
            keys: BTreeMap::new(),
            own_key,
            original,
            key_of_record,
            answers_of_no_run,
            finished: finished(history),
        };
        for (index, run) in history.runs.iter().enumerate() {
            let key = match &run.key {
                Some(key) => key.clone(),
                None => terms.key_of_record[&run.record].clone(),
            };
            let over = terms.over(run);
            let answer = answer_of_run.get(&index).copied();
            let visible = std::mem::take(&mut visible[index]);
            let invisible = history.transactions == "store" && visible.is_empty();
            let no_success = no_success[index];
            let began_late = false;
            let run = KeyRun { run, answer, began_late, over, visible, invisible, no_success };
            terms.keys.entry(key).or_default().runs.push(run);
        }
        for sent in &history.sent {
            if let Some(key) = terms.key_of_record.get(&sent.record) {
                terms.keys.entry(key.clone()).or_default().sent.push(sent.at);
            }
        }
        for answer in &history.answers {
            let Some(key) = terms.key_of_record.get(&answer.record) else { continue };
            let key = terms.keys.entry(key.clone()).or_default();
            match &*answer.outcome {
                "duplicate" => key.duplicates.push(answer.at),
                "given_up" => key.given_up.push(answer.at),
                _ => {}
            }
        }
        for entry in &history.entries {
            terms.keys.entry(entry.key.clone()).or_default().entries.push(entry);
        }
        for (at, key) in &history.reopened {
            terms.keys.entry(key.clone()).or_default().reopened.push(*at);
        }
        for (at, key) in &history.unlocked {
            terms.keys.entry(key.clone()).or_default().unlocked.push(*at);
        }
        let mut keys = std::mem::take(&mut terms.keys);
        for key in keys.values_mut() {
            // The sort is stable: equal runs stay in the order of files and lines.
            key.runs.sort_by_key(|run| (run.run.begin, run.run.token));
            for n in 0..key.runs.len() {
                let p = key.predecessor(n);
                let began_late = p.is_some_and(|p| terms.began_late(key, p, &key.runs[n]));
                key.runs[n].began_late = began_late;
            }
        }
        terms.keys = keys;
        terms
    }

    fn over(&self, run: &Run) -> Time {
        match (&run.end, self.kill(run)) {
            (Some(end), _) => end.at,
            (None, Some(kill)) => max(kill, run.begin),
            (None, None) => NEVER,
        }
    }

    /// Returns the time of the kill of a run, if it has one.
    pub(super) fn kill(&self, run: &Run) -> Option<Time> {
        let kills = self.faults_of("killed", &run.process);
        let kills = kills.filter(|kill| self.end_of_kill(kill) >= run.begin);
        kills.map(|kill| kill.at).min()
    }

    fn end_of_kill(&self, kill: &Fault) -> Time {
        max(kill.at, kill.until.unwrap_or(kill.at + self.lock_ttl_or_1()))
    }

    /// Checks whether the key of a record, which must be known, is derived.
    pub(super) fn derived(&self, record: &'h Record) -> bool {
        let chain = chain(record, &self.original);
        !chain.iter().any(|record| self.own_key.contains_key(record))
    }

    /// Returns when a record was finished, or `NEVER`.
    pub(super) fn finished(&self, record: &Record) -> Time {
        let finished = self.finished.get(record).copied();
        self.deletions(record).chain(finished).min().unwrap_or(NEVER)
    }

    /// Returns the times of each `deleted` of its partition with a larger offset.
    pub(super) fn deletions(&self, record: &Record) -> impl Iterator<Item = Time> {
        let deleted = self.history.deleted.iter().filter(|(_, partition, offset)| {
            *partition == record.partition && Time::from(record.offset) < *offset
        });
        deleted.map(|(at, ..)| *at)
    }

    /// Returns the interval of a fault. The time of a kill is its `at`, whenever it ends.
    pub(super) fn interval(&self, fault: &Fault) -> Interval {
        match &*fault.fault {
            "killed" => (fault.at, fault.at),
            "clock_stepped" => (fault.at, max(fault.at, fault.until.unwrap_or(fault.at))),
            _ => (fault.at, max(fault.at, fault.until.unwrap_or(self.history.last))),
        }
    }

    /// Returns the intervals of a fault.
    pub(super) fn intervals(&self, name: &str) -> impl Iterator<Item = Interval> {
        let faults = self.history.faults.iter().filter(move |fault| fault.fault == name);
        faults.map(|fault| self.interval(fault))
    }

    /// Checks whether a run of the record begins, or the one that began then, while a topic was recreated.
    pub(super) fn begins_while_recreated(&self, record: &Record, begin: Option<Time>) -> bool {
        let runs = self.history.runs.iter().filter(|run| run.record == *record);
        let mut begins = runs.map(|run| run.begin).filter(|at| begin.is_none_or(|it| it == *at));
        begins.any(|at| self.intervals("topic_recreated").any(|(from, to)| from <= at && at <= to))
    }

    /// Returns the faults of a process.
    fn faults_of(&self, name: &str, process: &str) -> impl Iterator<Item = &Fault> {
        let faults = self.history.faults.iter().filter(move |fault| fault.fault == name);
        faults.filter(move |fault| fault.process.as_deref() == Some(process))
    }

    /// Returns the intervals of a fault of a process.
    fn intervals_of(&self, name: &str, process: &str) -> impl Iterator<Item = Interval> {
        self.faults_of(name, process).map(|fault| self.interval(fault))
    }

    /// Checks whether a run began late, with `p` as its predecessor.
    pub(super) fn began_late(&self, key: &Key<'_>, p: &KeyRun<'_>, n: &KeyRun<'_>) -> bool {
        let granted_to_another = match (p.run.token, n.run.token) {
            (Some(of_p), Some(of_n)) => of_n < of_p || self.given_up(key, p, n),
            _ => false,
        };
        granted_to_another
            && n.processed().is_none()
            && n.visible.is_empty()
            && self.cause_of_late_begin(key, n).is_some()
    }

    pub(super) fn cause_of_late_begin(
        &self,
        key: &Key<'_>,
        n: &KeyRun<'_>,
    ) -> Option<&'static str> {
        let time = (max(n.run.begin - self.lock_ttl_or_1(), 0), n.run.begin);
        if self.intervals_of("suspended", &n.run.process).any(|it| touch(it, time)) {
            Some("suspended")
        } else if self.steps_forward(time).next().is_some() {
            Some("clock_stepped")
        } else if key.unlocked.iter().any(|at| touch((*at, *at), time)) {
            Some("unlocked")
        } else if self.intervals("store_lost_writes").any(|it| touch(it, time)) {
            Some("store_lost_writes")
        } else if self.intervals("store_evicted").any(|it| touch(it, time)) {
            Some("store_evicted")
        } else {
            None
        }
    }

    /// Returns the steps of the store's clock whose interval touches this time.
    fn steps_forward(&self, time: Interval) -> impl Iterator<Item = &Fault> {
        self.history.faults.iter().filter(move |fault| {
            fault.fault == "clock_stepped" && fault.by > 0 && touch(self.interval(fault), time)
        })
    }

    pub(super) fn rerun(&self, p: &KeyRun<'_>, n: &KeyRun<'_>) -> bool {
        let (first, last) = (min(p.run.line, n.run.line), max(p.run.line, n.run.line));
        let answered = || {
            self.history.answers.iter().any(|answer| {
                answer.process == n.run.process
                    && answer.record == n.run.record
                    && first < answer.line
                    && answer.line < last
            })
        };
        n.run.token.is_some()
            && p.run.token == n.run.token
            && p.run.process == n.run.process
            && p.run.record == n.run.record
            && p.run.attempt == n.run.attempt
            && (p.invisible || n.invisible)
            && !answered()
    }

    /// Returns the end of the lock of `p` before `n`.
    fn end_of_lock(&self, p: &KeyRun<'_>, n: &KeyRun<'_>) -> Time {
        let answer = p.answer.map(|answer| answer.at);
        let end = || p.run.end.as_ref().filter(|end| end.how != "ok").map(|end| end.at);
        let end_of_lock = answer.or_else(end).or_else(|| self.kill(p.run));
        end_of_lock.map_or(n.run.begin, |at| min(at, n.run.begin))
    }

    pub(super) fn unrenewed(&self, p: &KeyRun<'_>, n: &KeyRun<'_>) -> Unrenewed {
        let (end, lock_ttl) = (self.end_of_lock(p, n), self.lock_ttl_or_1());
        let time = (end - lock_ttl, min(end + lock_ttl, n.run.begin));
        Unrenewed {
            suspended: covered(self.intervals_of("suspended", &p.run.process), time),
            store_unavailable: covered(self.intervals("store_unavailable"), time),
            network_cut: covered(self.cut_off(&p.run.process), time),
            clock_stepped: self.steps_forward(time).map(|fault| fault.by).sum(),
        }
    }

    /// Returns the intervals for which a process was cut off from the store.
    fn cut_off(&self, process: &str) -> impl Iterator<Item = Interval> {
        let cuts = self.history.faults.iter().filter(move |fault| {
            fault.fault == "network_cut"
                && fault.peer == "store"
                && fault.process.as_ref().is_none_or(|cut| cut == process)
        });
        cuts.map(|fault| self.interval(fault))
    }

    /// Returns the `lock_ttl`, where one of 0 counts as 1.
    pub(super) fn lock_ttl_or_1(&self) -> Time {
        max(self.history.lock_ttl, 1)
    }

    pub(super) fn lock_may_have_expired(&self, p: &KeyRun<'_>, n: &KeyRun<'_>) -> bool {
        let half = (self.lock_ttl_or_1() + 1) / 2;
        self.unrenewed(p, n).sum() >= half
    }

    /// Checks whether the store was unavailable, or the process of `p` cut off from it, between the
    /// end of `p` and the begin of `n`, and not only later than a `lock_ttl` after this answer of
    /// `p`.
    pub(super) fn store_away_after(&self, p: &KeyRun<'_>, answer: Time, n: &KeyRun<'_>) -> bool {
        let Some(end) = &p.run.end else { return false };
        let time = (end.at, min(n.run.begin, answer + self.lock_ttl_or_1()));
        let mut away = self.intervals("store_unavailable").chain(self.cut_off(&p.run.process));
        away.any(|it| touch(it, time))
    }

    /// Checks whether what a consumer knows of a key at this time may be stale.
    pub(super) fn stale(&self, key: &Key<'_>, at: Time) -> bool {
        let mut losses = self.intervals("store_lost_writes").chain(self.intervals("store_evicted"));
        key.reopened.iter().any(|reopened| *reopened <= at) || losses.any(|(from, _)| from <= at)
    }

    /// Checks whether a run of a key is recorded by a time.
    pub(super) fn recorded(&self, key: &Key<'_>, run: &KeyRun<'_>, by: Time) -> bool {
        let in_entry = || {
            key.entries.iter().any(|entry| {
                let same_token = run.run.token.is_some() && entry.token == run.run.token;
                entry.state == "completed" && same_token
            })
        };
        let answered_as_duplicate = |success: Time| {
            let mut answers = key.duplicates.iter();
            answers.any(|at| success <= *at && *at <= by && !self.stale(key, *at))
        };
        run.processed().is_some()
            || !run.visible.is_empty()
            || run.success().is_some_and(|at| in_entry() || answered_as_duplicate(at))
    }

    /// Checks whether a key was given up between two runs.
    pub(super) fn given_up(&self, key: &Key<'_>, p: &KeyRun<'_>, n: &KeyRun<'_>) -> bool {
        let entries = key.entries.iter().filter(|entry| entry.state == "failed");
        let mut times = entries.map(|entry| entry.at).chain(key.given_up.iter().copied());
        let shown = times.any(|at| p.run.begin <= at && at <= n.run.begin && !self.stale(key, at));
        shown && !self.stale(key, n.run.begin)
    }

    /// Returns the time of the lock of `p` before `n`.
    fn time_of_lock(&self, key: &Key<'_>, p: &KeyRun<'_>, n: &KeyRun<'_>) -> Interval {
        if self.recorded(key, p, n.run.begin) {
            (p.run.begin, n.run.begin)
        } else {
            (max(p.run.begin - self.lock_ttl_or_1(), 0), n.run.begin)
        }
    }

    pub(super) fn writes_lost(&self, key: &Key<'_>, p: &KeyRun<'_>, n: &KeyRun<'_>) -> bool {
        let (from, mut to) = self.time_of_lock(key, p, n);
        if let Some(answer) = p.processed().filter(|answer| *answer < n.run.begin) {
            to = max(answer, p.run.begin);
        }
        self.intervals("store_lost_writes").any(|it| touch(it, (from, to)))
    }

    pub(super) fn evicted(&self, key: &Key<'_>, p: &KeyRun<'_>, n: &KeyRun<'_>) -> bool {
        let time = self.time_of_lock(key, p, n);
        self.intervals("store_evicted").any(|it| touch(it, time))
    }

    pub(super) fn unlocked(&self, key: &Key<'_>, p: &KeyRun<'_>, n: &KeyRun<'_>) -> bool {
        let (from, to) = self.time_of_lock(key, p, n);
        key.unlocked.iter().any(|at| from <= *at && *at <= to)
    }
}

/// Returns the answers of runs, given by their position in the history, and the other answers.
fn answers<'h>(
    history: &'h History,
    no_success: &[bool],
) -> (HashMap<usize, &'h Answer>, Vec<&'h Answer>) {
    enum Step<'h> {
        Success(usize),
        Answer(&'h Answer),
    }
    let mut steps = BTreeMap::new();
    for (index, run) in history.runs.iter().enumerate() {
        if let Some(end) = run.end.as_ref().filter(|end| end.how == "ok" && !no_success[index]) {
            steps.insert(end.line, Step::Success(index));
        }
    }
    for answer in &history.answers {
        steps.insert(answer.line, Step::Answer(answer));
    }
    // The last success of each record in each process, since its previous answer.
    let mut last = HashMap::new();
    let (mut of_runs, mut of_none) = (HashMap::new(), Vec::new());
    for step in steps.into_values() {
        match step {
            Step::Success(index) => {
                let run = &history.runs[index];
                last.insert((&*run.process, &run.record), index);
            }
            Step::Answer(answer) => match last.remove(&(&*answer.process, &answer.record)) {
                Some(run) => {
                    of_runs.insert(run, answer);
                }
                None => of_none.push(answer),
            },
        }
    }
    (of_runs, of_none)
}

fn finished(history: &History) -> HashMap<&Record, Time> {
    let unfinished = |answer: &&Answer| ["error", "dropped"].contains(&&*answer.outcome);
    let answers = history.answers.iter().filter(|answer| !unfinished(answer));
    let mut finished = HashMap::new();
    for (record, at) in answers
        .map(|answer| (&answer.record, answer.at))
        .chain(history.dead_letters.iter().map(|letter| (&letter.record, letter.at)))
        .chain(history.copies.iter().map(|copy| (&copy.record, copy.at)))
        .chain(history.skipped.iter().map(|(at, record)| (record, *at)))
    {
        let first = finished.entry(record).or_insert(at);
        *first = min(*first, at);
    }
    finished
}

fn own_keys(history: &History) -> HashMap<&Record, &str> {
    // The keys of `sent` are before those of runs, and the first counts.
    let mut own = HashMap::new();
    let sent = history.sent.iter().map(|sent| (&sent.record, &sent.key));
    for (record, key) in sent.chain(history.runs.iter().map(|run| (&run.record, &run.key))) {
        if let Some(key) = key {
            own.entry(record).or_insert(&**key);
        }
    }
    own
}

fn originals(history: &History) -> HashMap<&Record, &Record> {
    let mut original = HashMap::new();
    for copy in &history.copies {
        original.entry(&copy.to).or_insert(&copy.record);
    }
    original
}

/// Returns the record, the one it is a copy of, the one that is a copy of, and so on.
fn chain<'h>(record: &'h Record, original: &HashMap<&Record, &'h Record>) -> Vec<&'h Record> {
    let mut chain = Vec::new();
    let mut next = Some(record);
    while let Some(record) = next.filter(|record| !chain.contains(record)) {
        chain.push(record);
        next = original.get(record).copied();
    }
    chain
}

fn keys_of_records<'h>(
    history: &'h History,
    own: &HashMap<&Record, &str>,
    original: &HashMap<&Record, &'h Record>,
) -> HashMap<&'h Record, String> {
    let runs = || history.runs.iter().map(|run| &run.record);
    let copied = || history.copies.iter().map(|copy| &copy.record);
    let outputs = || history.outputs.iter().map(|output| &output.record);
    // The records whose key is the text of their coordinates, if they have no other.
    let named: HashSet<_> = runs().chain(copied()).chain(outputs()).collect();
    let key = |record| {
        let chain = chain(record, original);
        if let Some(key) = chain.iter().find_map(|record| own.get(record)) {
            return Some((*key).to_owned());
        }
        chain.iter().rfind(|record| named.contains(*record)).map(ToString::to_string)
    };
    let records = history.sent.iter().map(|sent| &sent.record);
    let records = records.chain(history.answers.iter().map(|answer| &answer.record));
    let records = records.chain(runs()).chain(copied()).chain(outputs());
    let records: HashSet<_> = records.collect();
    records.into_iter().filter_map(|record| Some((record, key(record)?))).collect()
}
