//! Decides what is to be done with letters: by the letters, their topics, and the store.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::State;
use campanile_idempotency::InspectStore;

use super::Redrive;
use super::letter::{Letter, Plan};
use super::reopen::{LetterKey, Verdict, look_up, reopen};
use super::report::LetterOutcome;
use super::sink::Verb;
use super::source::Source;
use crate::AdminError;
use crate::time::{Period, system_time};

pub(super) struct Decider<'a, S> {
    settings: &'a Redrive,
    store: &'a S,
    /// Whether the topics of the records exist, and how long they keep them.
    topics: HashMap<Arc<str>, (bool, Option<Duration>)>,
}

impl<'a, S: InspectStore> Decider<'a, S> {
    pub(super) fn new(settings: &'a Redrive, store: &'a S) -> Self {
        Self { settings, store, topics: HashMap::new() }
    }

    /// Decides what is to be done with each letter. Reopens keys, unless this is a preview, which changes
    /// nothing.
    pub(super) async fn decide(
        &mut self,
        source: &Source,
        letters: &[Letter],
        plans: Vec<Plan>,
        is_preview: bool,
    ) -> Result<Vec<Verb>, AdminError> {
        let plans = self.check_topics(source, letters, plans).await?;
        let (keys, timeout) = (keys(&plans), self.settings.timeout);
        let verdicts = match is_preview {
            true => look_up(self.store, &keys, timeout).await?,
            false => reopen(self.store, &keys, timeout).await?,
        };
        Ok(self.verbs(plans, verdicts))
    }

    /// Parks letters whose topics do not exist, and warns of records that these may soon delete.
    async fn check_topics(
        &mut self,
        source: &Source,
        letters: &[Letter],
        mut plans: Vec<Plan>,
    ) -> Result<Vec<Plan>, AdminError> {
        let now = system_time();
        for (letter, plan) in letters.iter().zip(&mut plans) {
            let (Plan::Reopen { .. } | Plan::Produce, Ok(headers)) = (&*plan, &letter.headers)
            else {
                continue;
            };
            let topic = &headers.origin.topic;
            if !self.topics.contains_key(topic) {
                let exists = source.partitions_of(topic).await?.is_some();
                let kept = if exists { source.retention_of(topic).await } else { None };
                self.topics.insert(topic.clone(), (exists, kept));
            }
            let age = letter.time().and_then(|time| now.duration_since(time).ok());
            match self.topics.get_mut(topic) {
                Some((true, kept)) => {
                    // Once for each topic.
                    if let Some(kept) = kept.take_if(|kept| age.is_some_and(|age| age >= *kept)) {
                        tracing::warn!(
                            topic = &**topic, record = %headers.origin, kept = %Period(kept),
                            "records are older than their topic keeps them, so the brokers may delete \
                             them before they are consumed; raise `retention.ms` until they are"
                        );
                    }
                }
                _ => *plan = Plan::Park(format!("its topic `{topic}` does not exist").into()),
            }
        }
        Ok(plans)
    }

    fn verbs(&self, plans: Vec<Plan>, verdicts: Vec<Verdict>) -> Vec<Verb> {
        let mut verdicts = verdicts.into_iter();
        let verbs = plans.into_iter().map(|plan| match plan {
            Plan::Filter => Verb::Filter,
            Plan::Park(why) => Verb::Park(why),
            Plan::Produce => Verb::Produce(LetterOutcome::Produced, "held no lock"),
            Plan::Reopen { .. } => self.verb(verdicts.next().unwrap_or(Verdict::Unreadable)),
        });
        verbs.collect()
    }

    fn verb(&self, verdict: Verdict) -> Verb {
        match verdict {
            Verdict::Reopened => Verb::Produce(LetterOutcome::Reopened, "reopened"),
            Verdict::ReopenedBefore => {
                Verb::Produce(LetterOutcome::Produced, "its key had been reopened before")
            }
            Verdict::Absent if self.settings.without_entry => {
                Verb::Produce(LetterOutcome::Produced, "had no entry")
            }
            Verdict::Absent => Verb::Park("its key has no entry in the store".into()),
            Verdict::Superseded => Verb::Skip("its key was locked again later"),
            Verdict::Settled(State::Completed) => Verb::Skip("completed"),
            Verdict::Settled(State::Processing) => Verb::Wait,
            Verdict::Settled(State::Retrying) => {
                Verb::Skip("not given up; its consumer retries it")
            }
            Verdict::Settled(State::Failed) | Verdict::Unreadable => {
                Verb::Park("the entry of its key cannot be read".into())
            }
        }
    }
}

/// The keys to reopen, in the order of their letters.
fn keys(plans: &[Plan]) -> Vec<LetterKey> {
    let keys = plans.iter().filter_map(|plan| match plan {
        Plan::Reopen { key, token } => Some((key.clone(), *token)),
        _ => None,
    });
    keys.collect()
}
