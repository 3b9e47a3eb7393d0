//! Handles letters in rounds: reopen the keys, produce the records, report, commit the offsets.

use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use campanile_idempotency::InspectStore;
use futures_util::future::{Either, join_all, select};
use tokio::time::timeout;

use super::Redrive;
use super::decide::Decider;
use super::letter::{Letter, Plan};
use super::report::{LetterOutcome, LetterReport, RedriveObserver, RedriveSummary};
use super::sink::{Sink, Verb};
use super::source::{Next, Source};
use crate::AdminError;
use crate::pacer::Pacer;

/// The number of letters in a round, unless a rate asks for fewer.
pub(super) const MAX_ROUND: usize = 1024;

/// The size of the letters in a round, in bytes, after which no more are added.
pub(super) const MAX_ROUND_BYTES: usize = 16 << 20;

/// The number of letters in a round that the filter does not select.
const MAX_FILTERED: usize = 4 * MAX_ROUND;

/// How long to wait for the first letter of a round, and for each further one.
const FIRST_LETTER_WAIT: Duration = Duration::from_millis(500);
const NEXT_LETTER_WAIT: Duration = Duration::from_millis(5);

/// Rounds per second with a rate.
const ROUNDS_PER_SECOND: u32 = 10;

/// The number of letters that wait until their keys are no longer processed.
const MAX_PENDING: usize = 1000;

/// The time between two looks at the pending letters.
const PENDING_INTERVAL: Duration = Duration::from_millis(500);

/// Why a letter is deferred.
pub(super) const WAITS: &str = "its key is being processed";

/// The time between two looks at the partitions of other processes.
const OTHERS_INTERVAL: Duration = Duration::from_millis(500);

/// How long a round may still wait for the store once a stop is requested. A store that answers needs
/// less.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

pub(super) struct Run<'a, S, O> {
    settings: &'a Redrive,
    source: Source,
    decider: Decider<'a, S>,
    sink: Sink,
    observer: &'a mut O,
    pacer: Pacer,
    /// Letters with a key that is being processed.
    pending: Vec<Letter>,
    /// How much longer to wait for the pending letters.
    patience: Duration,
    /// How many letters may still be handled.
    left: u64,
    /// Why the letters behind those of this round cannot be read.
    failure: Option<AdminError>,
    summary: RedriveSummary,
}

/// The result of gathering letters.
enum Round {
    Letters(Vec<(Letter, Plan)>),
    Reassigned,
    End,
}

impl<'a, S: InspectStore, O: RedriveObserver> Run<'a, S, O> {
    pub(super) fn new(
        settings: &'a Redrive,
        source: Source,
        store: &'a S,
        sink: Sink,
        observer: &'a mut O,
    ) -> Self {
        let handled_before = source.handled_before;
        Self {
            settings,
            source,
            decider: Decider::new(settings, store),
            sink,
            observer,
            pacer: Pacer::new(settings.rate),
            pending: Vec::new(),
            patience: settings.patience,
            left: settings.max.unwrap_or(u64::MAX),
            failure: None,
            summary: RedriveSummary { handled_before, ..RedriveSummary::default() },
        }
    }

    /// Handles all letters, then leaves the group.
    pub(super) async fn finish<F: Future>(
        mut self,
        stop: Pin<&mut F>,
    ) -> Result<RedriveSummary, AdminError> {
        let result = self.handle_all(stop).await;
        self.source.close().await;
        result.map(|()| self.summary)
    }

    async fn handle_all<F: Future>(&mut self, mut stop: Pin<&mut F>) -> Result<(), AdminError> {
        loop {
            let gathered = {
                let gather = pin!(self.gather());
                match select(&mut stop, gather).await {
                    Either::Left(_) => None,
                    Either::Right((round, _)) => Some(round?),
                }
            };
            let Some(round) = gathered else {
                self.summary.interrupted = true;
                break;
            };
            match round {
                Round::Letters(letters) => self.handle(letters, &mut stop).await?,
                Round::Reassigned => {
                    self.pending.clear();
                    self.observer.remaining(self.source.remaining());
                }
                Round::End if !self.pending.is_empty() && !self.patience.is_zero() => {
                    self.retry_pending(&mut stop).await?;
                }
                Round::End => {
                    self.defer_pending().await?;
                    self.commit().await?;
                    // Another process that has deferred a letter is never done. If this one has, too,
                    // each would wait for the other.
                    let is_done = self.left == 0 || self.summary.deferred > 0;
                    if is_done || self.source.others_are_done(self.settings.patience).await? {
                        break;
                    }
                    let wait = pin!(self.source.wait(OTHERS_INTERVAL));
                    match select(&mut stop, wait).await {
                        Either::Left(_) => self.summary.interrupted = true,
                        Either::Right((waited, _)) => waited?,
                    }
                }
            }
            if self.pending.len() >= MAX_PENDING && !self.summary.interrupted {
                self.retry_pending(&mut stop).await?;
            }
            if self.summary.interrupted {
                break;
            }
        }
        self.defer_pending().await
    }

    /// Gathers the letters of one round.
    async fn gather(&mut self) -> Result<Round, AdminError> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let limit = self.round_limit();
        let (mut letters, mut selected, mut bytes) = (Vec::new(), 0, 0);
        while selected < limit && letters.len() < MAX_FILTERED && bytes < MAX_ROUND_BYTES {
            let wait = if letters.is_empty() { FIRST_LETTER_WAIT } else { NEXT_LETTER_WAIT };
            let letter = match self.source.next(wait).await {
                Ok(Next::Letter(record)) => Letter::new(record),
                Ok(Next::Reassigned) => return Ok(Round::Reassigned),
                Ok(Next::Idle) if letters.is_empty() => continue,
                Ok(Next::Idle | Next::End) => break,
                Err(error) if letters.is_empty() => return Err(error),
                Err(error) => {
                    self.failure = Some(error);
                    break;
                }
            };
            let plan = letter.plan(self.settings);
            bytes += letter.record.size();
            selected += usize::from(plan != Plan::Filter);
            letters.push((letter, plan));
        }
        Ok(if letters.is_empty() { Round::End } else { Round::Letters(letters) })
    }

    fn round_limit(&self) -> usize {
        let by_rate = |rate: u32| usize::try_from(rate / ROUNDS_PER_SECOND).unwrap_or(MAX_ROUND);
        let limit = self.settings.rate.map_or(MAX_ROUND, |rate| by_rate(rate.get()).max(1));
        limit.min(MAX_ROUND).min(usize::try_from(self.left).unwrap_or(usize::MAX))
    }

    /// Handles one round of letters, unless it is interrupted.
    async fn handle<F: Future>(
        &mut self,
        letters: Vec<(Letter, Plan)>,
        stop: &mut Pin<&mut F>,
    ) -> Result<(), AdminError> {
        let selected = letters.iter().filter(|(_, plan)| *plan != Plan::Filter).count();
        self.left -= u64::try_from(selected).unwrap_or(u64::MAX).min(self.left);
        self.pacer.wait(u32::try_from(selected).unwrap_or(u32::MAX)).await;
        let (letters, plans): (Vec<Letter>, Vec<Plan>) = letters.into_iter().unzip();
        match self.decide(&letters, plans, stop).await? {
            Some(verbs) => self.act(letters, verbs).await,
            // The next run reads these letters again.
            None => Ok(()),
        }
    }

    /// Decides what is to be done with each letter. Reopens keys. `None` if a stop is requested and the
    /// store does not answer: as after a kill, some of the keys may then be reopened.
    async fn decide<F: Future>(
        &mut self,
        letters: &[Letter],
        plans: Vec<Plan>,
        stop: &mut Pin<&mut F>,
    ) -> Result<Option<Vec<Verb>>, AdminError> {
        let decide = pin!(self.decider.decide(&self.source, letters, plans, false));
        let decide = match select(&mut *stop, decide).await {
            Either::Left((_, decide)) => decide,
            Either::Right((verbs, _)) => return verbs.map(Some),
        };
        self.summary.interrupted = true;
        timeout(STOP_PATIENCE, decide).await.ok().transpose()
    }

    async fn act(&mut self, letters: Vec<Letter>, verbs: Vec<Verb>) -> Result<(), AdminError> {
        let acts = letters.iter().zip(verbs).map(|(letter, verb)| self.sink.act(letter, verb));
        let results = join_all(acts).await;
        let mut reports = Vec::with_capacity(letters.len());
        let mut failure = None;
        for (letter, result) in letters.iter().zip(results) {
            match result {
                Ok(Some(report)) => reports.push(report),
                Ok(None) => self.pending.push(letter.clone()),
                Err(error) => failure = Some(error),
            }
        }
        self.report(&reports)?;
        if let Some(error) = failure {
            return Err(error);
        }
        letters.iter().for_each(|letter| self.source.set_handled(&letter.record));
        self.commit().await
    }

    fn report(&mut self, reports: &[LetterReport]) -> Result<(), AdminError> {
        let reported = self.observer.handled(reports);
        reported.map_err(|error| AdminError::unavailable("cannot write the audit", error))?;
        reports.iter().for_each(|report| self.summary.add(report));
        Ok(())
    }

    async fn commit(&mut self) -> Result<(), AdminError> {
        self.source.commit(self.pending.iter().map(|letter| &letter.record)).await
    }

    /// Waits, then handles the pending letters again.
    async fn retry_pending<F: Future>(&mut self, stop: &mut Pin<&mut F>) -> Result<(), AdminError> {
        while !self.pending.is_empty() && !self.patience.is_zero() {
            let wait = PENDING_INTERVAL.min(self.patience);
            self.patience -= wait;
            if timeout(wait, &mut *stop).await.is_ok() {
                self.summary.interrupted = true;
                return Ok(());
            }
            let letters = std::mem::take(&mut self.pending);
            let plans = letters.iter().map(|letter| letter.plan(self.settings)).collect();
            match self.decide(&letters, plans, stop).await? {
                Some(verbs) => self.act(letters, verbs).await?,
                None => self.pending = letters,
            }
            if self.summary.interrupted {
                return Ok(());
            }
        }
        self.defer_pending().await
    }

    /// Leaves the pending letters to the next run.
    async fn defer_pending(&mut self) -> Result<(), AdminError> {
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return Ok(());
        }
        pending.iter().for_each(|letter| self.source.set_deferred(&letter.record));
        let report = |letter| LetterReport::new(letter, LetterOutcome::Deferred, WAITS);
        self.report(&pending.iter().map(report).collect::<Vec<_>>())?;
        self.commit().await
    }
}
