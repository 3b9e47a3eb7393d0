//! The relay's state: messages in hand, and the results so far.

use std::collections::{HashSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::time::Duration;

use campanile_core::{BoxError, BoxableError, Output};
use futures_util::StreamExt;
use futures_util::stream::{FuturesUnordered, SelectNextSome};
use tokio::time::Instant;
use tower_service::Service;

use super::lane::{Lane, Message};
use super::refused::Refused;
use super::relay::PAUSE;
use super::session::Asked;
use super::topics::{Topics, backoff};
use crate::seldom::Seldom;

/// The maximum number of messages in flight, each with a different key.
const AT_A_TIME: usize = 64;

/// The maximum number of those that were refused before: other messages must not wait for messages
/// that may take long to fail.
const AGAIN_AT_A_TIME: usize = 16;

/// The maximum number of messages, and of their bytes, in one read. Twice as many may be in hand.
const PAGE: usize = 250;
const PAGE_SIZE: usize = 2 << 20;

/// The minimum ratio of the pause between two reads to the duration of a read, unless there is a
/// reason to read. A table with many unpublishable messages takes long to scan.
const SELDOM: u32 = 20;

type Publishing = Pin<Box<dyn Future<Output = Ended> + Send>>;

/// The result of the first message of a lane.
pub(super) struct Ended(Lane, Result<(), BoxError>);

/// The messages in hand. Each is in a lane that waits or that has its first message in flight.
pub(super) struct Work<P> {
    publisher: P,
    lanes: VecDeque<Lane>,
    publishing: FuturesUnordered<Publishing>,
    in_hand: HashSet<i64>,
    bytes: usize,
    /// Acknowledged messages that are to be deleted.
    published: Vec<i64>,
    refused: Refused,
    topics: Topics,
    told: Seldom,
    /// Whether the table may have messages that could be taken.
    may_have_more: bool,
    /// When the table was last read, how long that took, and when the last statement was sent.
    read: Instant,
    took: Duration,
    asked: Instant,
    /// Whether a shutdown has begun, after which no more messages are taken.
    is_ending: bool,
}

impl<P> Work<P>
where
    P: Service<Output> + Clone + Send + 'static,
    P::Error: BoxableError,
    P::Future: Send,
{
    pub(super) fn new(publisher: P) -> Self {
        let now = Instant::now();
        Self {
            publisher,
            lanes: VecDeque::new(),
            publishing: FuturesUnordered::new(),
            in_hand: HashSet::new(),
            bytes: 0,
            published: Vec::new(),
            refused: Refused::new(backoff()),
            topics: Topics::new(backoff()),
            told: Seldom::default(),
            may_have_more: true,
            read: now,
            took: Duration::ZERO,
            asked: now,
            is_ending: false,
        }
    }

    /// Starts over with a new session. The messages in hand will be read again; the refused ones
    /// are remembered.
    pub(super) fn start_anew(&mut self) {
        self.lanes.clear();
        self.publishing.clear();
        self.in_hand.clear();
        self.bytes = 0;
        self.published.clear();
        self.topics.let_all_go();
        self.may_have_more = true;
        self.asked = Instant::now();
    }

    /// Builds the next statement's arguments, if a statement is needed.
    pub(super) fn ask(&mut self, now: Instant) -> Option<Asked> {
        let has_room = self.in_hand.len() <= PAGE && self.bytes <= PAGE_SIZE && !self.is_ending;
        let is_to_read = has_room && self.may_read(now);
        let due = if has_room { self.due(now) } else { Vec::new() };
        // A leader that sends no statement for long loses the lead.
        let is_silent = now >= self.asked + PAUSE;
        if self.published.is_empty() && due.is_empty() && !is_to_read && !is_silent {
            return None;
        }
        self.asked = now;
        let mut asked =
            Asked { published: std::mem::take(&mut self.published), due, ..Asked::default() };
        if is_to_read {
            self.may_have_more = false;
            self.read = now;
            asked.held = self.in_hand.iter().copied().chain(self.refused.ids()).collect();
            asked.full = self.topics.full(now);
            (asked.most, asked.size) = (PAGE as i32, PAGE_SIZE as i64);
        }
        Some(asked)
    }

    /// Takes the answer to that statement, as far as each topic may get more messages.
    pub(super) fn take(&mut self, messages: Vec<Message>, asked: &Asked, now: Instant) {
        let is_gone = |id: &i64| messages.iter().all(|message| message.id != *id);
        asked.due.iter().filter(|id| is_gone(id)).for_each(|&id| self.refused.remove(id));
        if asked.most > 0 {
            self.took = now - self.read;
        }
        let (again, others): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|message| self.refused.contains(message.id));
        self.may_have_more |= !others.is_empty();
        let has_another: HashSet<_> =
            others.iter().map(|message| message.output.topic.clone()).collect();
        let is_in_turn = |message: &Message| {
            let topic = &message.output.topic;
            !(has_another.contains(topic) && self.topics.is_for_another(topic))
        };
        let again: Vec<_> = again.into_iter().filter(is_in_turn).collect();
        for lane in Lane::group(again).into_iter().chain(Lane::group(others)) {
            let topic = lane.first().output.topic.clone();
            if !self.topics.has_room(&topic, now) {
                continue;
            }
            // If this message is refused, the later ones need not wait in memory.
            let lane = if self.topics.takes(&topic) { lane } else { lane.only_first() };
            for message in lane.iter() {
                self.in_hand.insert(message.id);
                self.bytes += message.output.size();
                self.topics.take(&topic);
            }
            self.lanes.push_back(lane);
        }
    }

    /// Publishes as many messages as may be in flight.
    pub(super) fn begin(&mut self) {
        while !self.is_ending && self.publishing.len() < AT_A_TIME {
            let Some(lane) = self.lanes.pop_front() else {
                return;
            };
            let publishing = publish(self.publisher.clone(), lane.first().output.clone());
            self.publishing.push(Box::pin(async { Ended(lane, publishing.await) }));
        }
    }

    /// Waits for the next message to be published or refused.
    pub(super) fn ended(&mut self) -> SelectNextSome<'_, FuturesUnordered<Publishing>> {
        self.publishing.select_next_some()
    }

    pub(super) fn settle(&mut self, Ended(lane, result): Ended, now: Instant) {
        let (first, rest) = lane.advance();
        self.let_go(&first);
        match result {
            Ok(()) => {
                self.published.push(first.id);
                self.refused.remove(first.id);
                let takes_more = self.topics.acknowledge(&first.output.topic);
                self.may_have_more |= takes_more || rest.is_none();
                self.lanes.extend(rest);
            }
            Err(error) => {
                rest.iter().flat_map(Lane::iter).for_each(|message| self.let_go(message));
                let (id, topic) = (first.id, &first.output.topic);
                self.refused.insert(id, topic, now);
                self.topics.refuse(topic, now);
                if self.told.is_due(now) {
                    tracing::warn!(
                        topic = &**topic,
                        id,
                        refused = self.refused.len(),
                        topic_waits = !self.topics.takes(topic),
                        error = &*error as &dyn std::error::Error,
                        "outbox message refused; retrying while later messages of its key wait"
                    );
                }
            }
        }
    }

    /// Records that the table may have more messages.
    pub(super) fn look(&mut self) {
        self.may_have_more = true;
    }

    /// Takes and publishes no more messages.
    pub(super) fn end(&mut self) {
        self.is_ending = true;
    }

    /// Whether no message is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.publishing.is_empty()
    }

    /// The next time after `now` at which there is something to do, if nothing happens until then.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let rested =
            Some(self.read + 2 * self.took).filter(|&rested| rested > now && self.may_have_more);
        [self.refused.next(now), self.topics.next(now), rested].into_iter().flatten().min()
    }

    /// Whether a read of the table may return anything. Each read scans the messages that are held
    /// up, so reads take at most half of the time.
    fn may_read(&self, now: Instant) -> bool {
        let is_due = |next: Option<Instant>| next.is_some_and(|next| next <= now);
        let is_asked_for = self.may_have_more || is_due(self.topics.next(self.read));
        let is_time = now >= self.read + PAUSE.max(SELDOM * self.took);
        now >= self.read + 2 * self.took && (is_asked_for || is_time)
    }

    /// Lists the refused messages that are due for a retry.
    fn due(&self, now: Instant) -> Vec<i64> {
        let again = self.in_hand.iter().filter(|id| self.refused.contains(**id)).count();
        let most = AGAIN_AT_A_TIME.saturating_sub(again);
        self.refused.due(now, most, &self.in_hand, |topic| self.topics.has_room(topic, now))
    }

    fn let_go(&mut self, message: &Message) {
        self.in_hand.remove(&message.id);
        self.bytes -= message.output.size();
        self.topics.let_go(&message.output.topic);
    }
}

async fn publish<P>(mut publisher: P, output: Output) -> Result<(), BoxError>
where
    P: Service<Output>,
    P::Error: BoxableError,
{
    poll_fn(|cx| publisher.poll_ready(cx)).await.map_err(Into::into)?;
    publisher.call(output).await.map(drop).map_err(Into::into)
}
