//! Random histories: many events of few keys, records and times, so that they meet.

use serde_json::{Value, json};

/// The name and the lines of each file.
pub(crate) type Files = Vec<(String, Vec<String>)>;

/// The lines of a process.
struct Process {
    name: String,
    lines: Vec<String>,
    runs: u64,
    running: Vec<(u64, Record)>,
    /// The last run: its record, and its fields from the key on.
    last: Option<(Record, String)>,
}

type Record = (&'static str, u64);

struct Random {
    rng: fastrand::Rng,
    /// The latest time, and the largest token and attempt.
    times: u64,
    tokens: u64,
    /// Whether there are one key and two records, with tokens that mostly rise.
    is_focused: bool,
    now: u64,
    token: u64,
}

/// Creates a history.
pub(crate) fn random_history(seed: u64) -> Files {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (times, tokens) = (*rng.choice(&[6, 20, 60]).unwrap(), *rng.choice(&[3, 8]).unwrap());
    let steps = *rng.choice(&[4, 8, 16, 40]).unwrap();
    let is_focused = rng.bool();
    let mut random = Random { rng, times, tokens, is_focused, now: 0, token: 0 };
    let mut processes: Vec<Process> = (0..random.rng.usize(1..=4))
        .map(|number| Process {
            name: format!("w-{number}"),
            lines: Vec::new(),
            runs: 0,
            running: Vec::new(),
            last: None,
        })
        .collect();
    for _ in 0..steps {
        let process = random.rng.usize(..processes.len());
        random.step(&mut processes[process]);
    }
    random.show_effects(&mut processes);
    let settings = random.settings();
    let mut files = Files::new();
    for (number, Process { name, mut lines, .. }) in processes.into_iter().enumerate() {
        let settings = if number == 0 || random.chance(2) { &settings } else { "" };
        let header = format!(
            "{{\"event\":\"history\",\"version\":1,\"process\":\"{name}\",\"clock\":\"c\",\"unit\":\"us\"{settings}}}\n"
        );
        lines.insert(0, header);
        match files.last_mut() {
            Some((_, of_file)) if random.chance(3) => of_file.append(&mut lines),
            _ => files.push((format!("{number}.jsonl"), lines)),
        }
    }
    if random.chance(8) {
        random.corrupt(&mut files);
    }
    files
}

impl Random {
    /// Returns true once in so many times.
    fn chance(&mut self, one_in: u32) -> bool {
        self.rng.u32(..one_in) == 0
    }

    fn maybe(&mut self, one_in: u32, text: String) -> String {
        if self.chance(one_in) { text } else { String::new() }
    }

    /// Changes a line, mostly so that the history is not valid any more.
    fn corrupt(&mut self, files: &mut Files) {
        let file = self.rng.usize(..files.len());
        let lines = &mut files[file].1;
        let index = self.rng.usize(..lines.len());
        match self.rng.u32(..12) {
            0 => drop(lines.remove(index)),
            1 => lines.insert(index, "\n".to_owned()),
            4 => {
                let line: Value = serde_json::from_str(&lines[index]).unwrap();
                let values: Vec<_> = line.as_object().unwrap().values().collect();
                lines[index] = format!("{}\n", json!(values));
            }
            2 => {
                let other = self.rng.usize(..lines.len());
                lines.swap(index, other);
            }
            3 => {
                // A killed process can leave a part of its last line.
                let last = lines.last_mut().expect("a file has a header");
                last.truncate(self.rng.usize(..last.len()));
            }
            _ => {
                let mut line: Value = serde_json::from_str(&lines[index]).unwrap();
                let mut fields = line.as_object_mut().unwrap();
                if fields.contains_key("settings") && self.rng.bool() {
                    fields = fields["settings"].as_object_mut().unwrap();
                }
                let names: Vec<_> = fields.keys().cloned().collect();
                let name = self.rng.choice(names).unwrap();
                let values = [
                    json!(null),
                    json!(0),
                    json!(-1),
                    json!(1.5),
                    json!(u64::from(u32::MAX) + 1),
                    json!(u64::MAX),
                    json!(""),
                    json!("t/0@1"),
                    json!("t/0"),
                    json!("/1@1"),
                    json!("t/01@+1"),
                    json!("t/0@-1"),
                    json!("t/4294967296@1"),
                    json!({}),
                    json!({ fields[&name].as_str().unwrap_or_default(): null }),
                    fields[&name]
                        .as_object()
                        .map_or(json!([]), |it| it.values().cloned().collect()),
                ];
                match self.rng.choice(values) {
                    Some(value) if !self.chance(3) => fields.insert(name, value),
                    _ => fields.remove(&name),
                };
                lines[index] = format!("{line}\n");
            }
        }
    }

    fn settings(&mut self) -> String {
        let order = self.rng.choice(["partition", "key", "none"]).unwrap();
        // Short locks end long before most faults, and after others.
        let longest = *self.rng.choice(&[3, 12]).unwrap();
        let lock_ttl = self.rng.u64(..longest);
        let max_hold = self.rng.u64(..6);
        let max_hold = self.maybe(2, format!(",\"max_hold\":{max_hold}"));
        let transactions = self.rng.choice(["store", "broker"]).unwrap();
        let transactions = self.maybe(2, format!(",\"transactions\":\"{transactions}\""));
        let tolerance = self.rng.u64(..4);
        let tolerance = self.maybe(2, format!(",\"tolerance\":{tolerance}"));
        format!(
            ",\"settings\":{{\"order\":\"{order}\",\"lock_ttl\":{lock_ttl}{max_hold}{transactions}{tolerance}}}"
        )
    }

    /// Adds the effects of most runs, and rarely one of a run that never begins.
    fn show_effects(&mut self, processes: &mut [Process]) {
        for of in 0..processes.len() {
            let runs = processes[of].runs + u64::from(self.chance(100));
            for run in 1..=runs {
                for _ in 0..*self.rng.choice(&[0, 0, 0, 1, 1, 1, 1, 1, 2]).unwrap() {
                    let (at, by) = (self.time(), self.rng.usize(..processes.len()));
                    processes[by].lines.push(format!(
                        "{{\"event\":\"visible\",\"at\":{at},\"process\":\"w-{of}\",\"run\":{run}}}\n"
                    ));
                }
            }
        }
    }

    fn record(&mut self) -> Record {
        if self.is_focused {
            return ("t/0", self.rng.u64(..2));
        }
        (*self.rng.choice(&["t/0", "t/0", "t/1", "t.retry/0"]).unwrap(), self.rng.u64(..4))
    }

    fn text(&mut self) -> String {
        let (partition, offset) = self.record();
        format!("{partition}@{offset}")
    }

    fn key(&mut self) -> &'static str {
        if self.is_focused {
            return "a";
        }
        // One of them looks like the key of a record without one.
        self.rng.choice(&["a", "a", "a", "b", "t/0@1"]).unwrap()
    }

    fn key_field(&mut self) -> String {
        let key = self.key();
        let has_key = !self.chance(4);
        if has_key { format!(",\"key\":\"{key}\"") } else { String::new() }
    }

    fn token(&mut self) -> u64 {
        if self.is_focused && !self.chance(4) {
            self.token += 1;
            self.token
        } else {
            self.rng.u64(..self.tokens)
        }
    }

    /// Mostly in order, and rarely not.
    fn time(&mut self) -> u64 {
        match self.rng.u32(..10) {
            0 => self.rng.u64(..self.times),
            1 | 2 => self.now,
            _ => {
                self.now += self.rng.u64(..=1 + self.times / 10);
                self.now
            }
        }
    }

    fn until(&mut self, at: u64) -> String {
        let until = at + self.rng.u64(..=self.times / 2);
        let is_open = self.chance(6);
        if is_open { String::new() } else { format!(",\"until\":{until}") }
    }

    fn step(&mut self, process: &mut Process) {
        let at = self.time();
        let line = match self.rng.u32(..42) {
            0..8 => return self.begin(process, at),
            8..16 => return self.end(process, at),
            16..19 => {
                let record = self.text();
                return self.answer(process, at, &record);
            }
            19..22 => {
                let (record, key) = (self.text(), self.key_field());
                let order = self.rng.choice(["x", "y"]).unwrap();
                let order = self.maybe(2, format!(",\"order\":\"{order}\""));
                format!("\"event\":\"sent\",\"at\":{at},\"record\":\"{record}\"{key}{order}")
            }
            22 => {
                let event = self.rng.choice(["dead_letter", "copy", "copy"]).unwrap();
                // Copies lead from one partition to the next, and never back.
                let partitions = ["t/0", "t/1", "t.retry/0"];
                let from = self.rng.usize(..2);
                let to = self.rng.usize(from + 1..3);
                let (offset, offset_of_copy) = (self.rng.u64(..4), self.rng.u64(..4));
                let record = format!("{}@{offset}", partitions[from]);
                let to = format!("{}@{offset_of_copy}", partitions[to]);
                format!("\"event\":\"{event}\",\"at\":{at},\"record\":\"{record}\",\"to\":\"{to}\"")
            }
            23 => {
                let record = self.text();
                format!("\"event\":\"skipped\",\"at\":{at},\"record\":\"{record}\"")
            }
            24 | 25 => {
                let event = self.rng.choice(["commit", "commit", "reset", "deleted"]).unwrap();
                let ((partition, _), offset) = (self.record(), self.rng.u64(..5));
                format!(
                    "\"event\":\"{event}\",\"at\":{at},\"partition\":\"{partition}\",\"offset\":{offset}"
                )
            }
            26 => {
                let (key, token) = (self.key(), self.rng.u64(..=self.tokens));
                self.entry(at, key, token)
            }
            27 => {
                let (event, key) = (self.rng.choice(["reopened", "unlocked"]).unwrap(), self.key());
                format!("\"event\":\"{event}\",\"at\":{at},\"key\":\"{key}\"")
            }
            28 | 29 => {
                let (record, offset) = (self.text(), self.rng.u64(..4));
                let to = self.rng.choice(["o/0", "o/0", "o/1"]).unwrap();
                format!(
                    "\"event\":\"output\",\"at\":{at},\"record\":\"{record}\",\"to\":\"{to}@{offset}\""
                )
            }
            30..33 => return self.unrecorded(process, at),
            33 | 34 => return self.late(process, at),
            35 | 36 => return self.entries(process, at),
            37 => return self.given_up(process, at),
            _ => {
                // The last one has no header.
                let process = format!("w-{}", self.rng.u32(..5));
                self.fault(at, &process)
            }
        };
        process.lines.push(format!("{{{line}}}\n"));
    }

    fn begin(&mut self, process: &mut Process, at: u64) {
        let again = process.last.take().filter(|_| self.chance(4));
        let (record, fields) = again.unwrap_or_else(|| {
            let (record, key, token) = (self.record(), self.key_field(), self.token());
            let token = if self.chance(8) { String::new() } else { format!(",\"token\":{token}") };
            let attempt = self.attempt_field();
            (record, format!("{key}{token}{attempt}"))
        });
        Self::begin_with(process, at, record, fields);
    }

    fn attempt_field(&mut self) -> String {
        let attempt = self.rng.u64(..4);
        self.maybe(2, format!(",\"attempt\":{attempt}"))
    }

    /// Begins a run with these fields from the key on.
    fn begin_with(process: &mut Process, at: u64, record: Record, fields: String) {
        process.runs += 1;
        let run = process.runs;
        process.running.push((run, record));
        let (partition, offset) = record;
        process.lines.push(format!(
            "{{\"event\":\"begin\",\"at\":{at},\"run\":{run},\"record\":\"{partition}@{offset}\"{fields}}}\n"
        ));
        process.last = Some((record, fields));
    }

    /// Ends a run, often with its answer.
    fn end(&mut self, process: &mut Process, at: u64) {
        if process.running.is_empty() {
            return self.begin(process, at);
        }
        let index = self.rng.usize(..process.running.len());
        let (run, (partition, offset)) = process.running[index];
        if self.chance(4) {
            process.lines.push(format!("{{\"event\":\"effect\",\"at\":{at},\"run\":{run}}}\n"));
            return;
        }
        process.running.remove(index);
        let how = self.rng.choice(["ok", "ok", "error", "dropped"]).unwrap();
        let lost = self.maybe(3, ",\"lost\":\"expired\"".to_owned());
        process.lines.push(format!(
            "{{\"event\":\"end\",\"at\":{at},\"run\":{run},\"how\":\"{how}\"{lost}}}\n"
        ));
        if self.chance(2) {
            let at = self.time();
            self.answer(process, at, &format!("{partition}@{offset}"));
        }
    }

    fn answer(&mut self, process: &mut Process, at: u64, record: &str) {
        let outcomes = [
            "processed",
            "processed",
            "processed",
            "duplicate",
            "given_up",
            "unguarded",
            "error",
            "dropped",
        ];
        let outcome = self.rng.choice(outcomes).unwrap();
        Self::answer_with(process, at, record, outcome);
    }

    fn answer_with(process: &mut Process, at: u64, record: &str, outcome: &str) {
        process.lines.push(format!(
            "{{\"event\":\"answer\",\"at\":{at},\"record\":\"{record}\",\"outcome\":\"{outcome}\"}}\n"
        ));
    }

    /// Adds a run that is mostly not recorded, and what happens to its process and its key, sooner or
    /// later. It decides which cause the next run has.
    fn unrecorded(&mut self, process: &mut Process, at: u64) {
        self.begin(process, at);
        let (run, (partition, offset)) = process.running.pop().expect("a run began");
        let record = format!("{partition}@{offset}");
        if !self.chance(6) {
            let (at, how) = (self.time(), self.rng.choice(["ok", "ok", "ok", "dropped"]).unwrap());
            process.lines.push(format!(
                "{{\"event\":\"end\",\"at\":{at},\"run\":{run},\"how\":\"{how}\"}}\n"
            ));
            let at = self.time();
            let outcome = self.rng.choice(["dropped", "dropped", "error", "processed"]).unwrap();
            if !self.chance(4) {
                Self::answer_with(process, at, &record, outcome);
            }
        }
        for _ in 0..self.rng.u32(..3) {
            let at = self.time();
            let fault = self.fault(at, &process.name);
            process.lines.push(format!("{{{fault}}}\n"));
        }
        if self.chance(3) {
            let at = self.time();
            Self::answer_with(process, at, &record, "given_up");
        }
    }

    /// Adds two runs of a key, the later one with a smaller token, and what may have ended its lock
    /// before it began.
    fn late(&mut self, process: &mut Process, at: u64) {
        let (key, token, token_of_late) = (self.key(), self.token() + 1, self.rng.u64(..2));
        let tokens = [token, token.saturating_sub(1 + token_of_late)];
        for (index, token) in tokens.into_iter().enumerate() {
            let (record, attempt) = (self.record(), self.attempt_field());
            let fields = format!(",\"key\":\"{key}\",\"token\":{token}{attempt}");
            if index == 0 {
                Self::begin_with(process, at, record, fields);
                if self.chance(2) {
                    self.end(process, at);
                }
                self.disturb(process, key);
            } else {
                let at = self.time();
                Self::begin_with(process, at, record, fields);
            }
        }
    }

    /// Adds up to two faults or commands of an operator, which mostly affect the process or the key.
    fn disturb(&mut self, process: &mut Process, key: &str) {
        for _ in 0..self.rng.u32(..3) {
            let at = self.time();
            let line = match self.rng.u32(..6) {
                0 | 1 => format!("\"event\":\"unlocked\",\"at\":{at},\"key\":\"{key}\""),
                2 => format!("\"event\":\"reopened\",\"at\":{at},\"key\":\"{key}\""),
                _ => self.fault(at, &process.name),
            };
            process.lines.push(format!("{{{line}}}\n"));
        }
    }

    /// Adds a run that succeeds, entries of its key that are mostly read one after the other, and what
    /// may have changed it.
    fn entries(&mut self, process: &mut Process, at: u64) {
        let (key, token, (partition, offset)) = (self.key(), self.token(), self.record());
        let fields = format!(",\"key\":\"{key}\",\"token\":{token}");
        Self::begin_with(process, at, (partition, offset), fields);
        let ((run, _), at) = (process.running.pop().expect("a run began"), self.time());
        process
            .lines
            .push(format!("{{\"event\":\"end\",\"at\":{at},\"run\":{run},\"how\":\"ok\"}}\n"));
        if self.chance(3) {
            let at = self.time();
            Self::answer_with(process, at, &format!("{partition}@{offset}"), "processed");
        }
        for _ in 0..self.rng.u32(1..4) {
            let at = self.time() + self.rng.u64(..3);
            let entry = self.entry(at, key, token);
            process.lines.push(format!("{{{entry}}}\n"));
            if self.chance(4) {
                self.disturb(process, key);
            }
        }
    }

    fn entry(&mut self, at: u64, key: &str, token: u64) -> String {
        let states = ["absent", "processing", "retrying", "completed", "completed", "failed"];
        let state = self.rng.choice(states).unwrap();
        let token = if self.chance(4) { String::new() } else { format!(",\"token\":{token}") };
        // Rarely later than the entry.
        let since = (at + 1).saturating_sub(self.rng.u64(..5));
        let since = self.maybe(2, format!(",\"since\":{since}"));
        format!(
            "\"event\":\"entry\",\"at\":{at}{since},\"key\":\"{key}\",\"state\":\"{state}\"{token}"
        )
    }

    /// Adds an answer `given_up` of a record, whose key has rarely a run before, and what may have
    /// counted its attempts.
    fn given_up(&mut self, process: &mut Process, at: u64) {
        let (record, key) = (self.text(), "b");
        if !self.chance(4) {
            process.lines.push(format!(
                "{{\"event\":\"sent\",\"at\":{at},\"record\":\"{record}\",\"key\":\"{key}\"}}\n"
            ));
        }
        self.disturb(process, key);
        let at = self.time();
        Self::answer_with(process, at, &record, "given_up");
    }

    fn fault(&mut self, at: u64, process: &str) -> String {
        let process = format!(",\"process\":\"{process}\"");
        let until = self.until(at);
        let by = self.rng.i64(-3..9);
        let (cut, peer) =
            (self.maybe(2, process.clone()), self.rng.choice(["store", "broker"]).unwrap());
        let fault = match self.rng.u32(..10) {
            0 => format!("killed\"{process}"),
            1 => format!("killed\"{until}{process}"),
            2 | 3 => format!("suspended\"{until}{process}"),
            4 => format!("store_unavailable\"{until}"),
            5 => format!("store_lost_writes\"{until}"),
            6 => format!("store_evicted\"{until}"),
            7 if self.rng.bool() => format!("store_sessions_ended\"{until}"),
            7 if self.rng.bool() => format!("topic_recreated\"{until}"),
            7 => format!("broker_killed\"{until}"),
            8 => format!("clock_stepped\"{until},\"by\":{by}"),
            _ => format!("network_cut\"{until}{cut},\"peer\":\"{peer}\""),
        };
        format!("\"event\":\"fault\",\"at\":{at},\"fault\":\"{fault}")
    }
}
