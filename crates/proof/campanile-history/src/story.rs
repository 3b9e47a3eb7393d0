//! Events in words.

use crate::{Event, FaultKind, How, Outcome, Peer, State};

/// Describes an event, without its time and its process.
pub(crate) fn describe(event: &Event) -> String {
    match event {
        Event::Sent(sent) => match &sent.key {
            Some(key) => format!("{} is sent, with key {key}", sent.record),
            None => format!("{} is sent, without a key", sent.record),
        },
        Event::Begin(begin) => {
            let lock = match (begin.attempt, begin.token) {
                (Some(attempt), Some(token)) => format!("attempt {attempt}, token {token}"),
                (None, Some(token)) => format!("token {token}"),
                _ => "without a lock".into(),
            };
            format!("run {} of {} begins ({lock})", begin.run, begin.record)
        }
        Event::Effect(effect) => format!("run {} has had its effect", effect.run),
        Event::End(end) => {
            let how = match end.how {
                How::Ok => "ends with ok",
                How::Error => "ends with an error",
                How::Dropped => "is dropped",
            };
            let lost = end.lost.as_ref().map(|lost| format!("; its lock was lost: {lost}"));
            format!("run {} {how}{}", end.run, lost.unwrap_or_default())
        }
        Event::Answer(answer) => {
            let outcome = match answer.outcome {
                Outcome::Processed => "is answered as processed",
                Outcome::Duplicate => "is answered as a duplicate",
                Outcome::GivenUp => "is answered as given up",
                Outcome::Unguarded => "is answered as processed without a lock",
                Outcome::Error => "is answered with an error",
                Outcome::Dropped => "is not answered, because the response is dropped",
            };
            let error = answer.error.as_ref().map(|error| format!(": {error}"));
            format!("{} {outcome}{}", answer.record, error.unwrap_or_default())
        }
        Event::DeadLetter(letter) => {
            format!("the dead letter of {} is published as {}", letter.record, letter.to)
        }
        Event::Copy(copy) => format!("{} is copied to {}", copy.record, copy.to),
        Event::Skipped(skipped) => format!("{} is skipped", skipped.record),
        Event::Commit(commit) => {
            format!("{} is committed up to {}", commit.partition, commit.offset)
        }
        Event::Reset(reset) => format!("{} is moved to {}", reset.partition, reset.offset),
        Event::Deleted(deleted) => {
            format!("the records of {} below {} are deleted", deleted.partition, deleted.offset)
        }
        Event::Entry(entry) => {
            let state = match entry.state {
                State::Absent => return format!("{} has no entry", entry.key),
                State::Processing => "PROCESSING",
                State::Retrying => "RETRYING",
                State::Completed => "COMPLETED",
                State::Failed => "FAILED",
            };
            let token = entry.token.map(|token| format!(" (token {token})"));
            format!("the entry of {} is {state}{}", entry.key, token.unwrap_or_default())
        }
        Event::Visible(visible) => {
            format!("the effect of run {} of {} is in the store", visible.run, visible.process)
        }
        Event::Output(output) => format!("an output of {} is at {}", output.record, output.to),
        Event::Reopened(reopened) => format!("{} is reopened", reopened.key),
        Event::Unlocked(unlocked) => format!("{} is unlocked", unlocked.key),
        Event::Fault(fault) => {
            let what = describe_fault(&fault.kind);
            match fault.until {
                Some(until) => {
                    format!("{what}, for {:.3} s", seconds(until.saturating_sub(fault.at)))
                }
                None => what,
            }
        }
    }
}

fn describe_fault(kind: &FaultKind) -> String {
    match kind {
        FaultKind::Killed { process } => format!("{process} is killed"),
        FaultKind::Suspended { process } => format!("{process} is suspended"),
        FaultKind::StoreUnavailable => "the store is unavailable".into(),
        FaultKind::StoreLostWrites => "the store loses acknowledged writes".into(),
        FaultKind::StoreEvicted => "the store removes entries".into(),
        FaultKind::StoreSessionsEnded => "the store ends sessions".into(),
        FaultKind::BrokerKilled => "a broker is killed".into(),
        FaultKind::TopicRecreated => "a topic is deleted and created again".into(),
        FaultKind::ClockStepped { by } => format!("the store's clock is set by {by} µs"),
        FaultKind::NetworkCut { process, peer } => {
            let process = process.as_deref().unwrap_or("every process");
            let peer = match peer {
                Peer::Store => "the store",
                Peer::Broker => "a broker",
            };
            format!("{process} is cut off from {peer}")
        }
    }
}

/// Converts microseconds for display.
pub(crate) fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}
