//! What the relay has in hand.

use std::collections::{HashSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;

use campanile_core::{BoxError, BoxableError, Output};
use futures_util::StreamExt;
use futures_util::stream::{FuturesUnordered, SelectNextSome};
use tokio::time::Instant;
use tower_service::Service;

use super::lane::{Lane, Message};
use super::refused::Refused;
use super::relay::PAUSE;
use super::session::Asked;
use crate::seldom::Seldom;

/// How many messages are published at a time, each of another key.
const AT_A_TIME: usize = 64;

/// How many of them were refused before: the others are not to wait for what may take long to fail.
const AGAIN_AT_A_TIME: usize = 16;

/// How many messages are read at a time, and how many bytes of them. Twice as many may be in hand.
const PAGE: usize = 250;
const PAGE_SIZE: usize = 2 << 20;

type Publishing = Pin<Box<dyn Future<Output = Ended> + Send>>;

/// What came of the first message of a lane.
pub(super) struct Ended(Lane, Result<(), BoxError>);

/// Messages in hand: each is in a lane, which waits, or whose first is being published.
pub(super) struct Work<P> {
    publisher: P,
    lanes: VecDeque<Lane>,
    publishing: FuturesUnordered<Publishing>,
    in_hand: HashSet<i64>,
    bytes: usize,
    /// Acknowledged, and to be deleted.
    published: Vec<i64>,
    refused: Refused,
    told: Seldom,
    /// Whether there may be messages in the table that could be taken.
    may_have_more: bool,
    /// When it was read last, and when anything was asked.
    read: Instant,
    asked: Instant,
    /// Whether no more are taken.
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
            refused: Refused::new(),
            told: Seldom::default(),
            may_have_more: true,
            read: now,
            asked: now,
            is_ending: false,
        }
    }

    /// What is to be asked of the table, if anything.
    pub(super) fn ask(&mut self, now: Instant) -> Option<Asked> {
        let has_room = self.in_hand.len() <= PAGE && self.bytes <= PAGE_SIZE && !self.is_ending;
        let is_to_read = has_room && self.may_read(now);
        // Who asks nothing for long leads no more.
        let is_silent = now >= self.asked + PAUSE;
        if self.published.is_empty() && !is_to_read && !is_silent {
            return None;
        }
        self.asked = now;
        let published = std::mem::take(&mut self.published);
        if !is_to_read {
            return Some(Asked { published, ..Asked::default() });
        }
        self.may_have_more = false;
        self.read = now;
        let again = self.in_hand.iter().filter(|id| self.refused.contains(**id)).count();
        let due = self.refused.due(now, AGAIN_AT_A_TIME.saturating_sub(again), &self.in_hand);
        let refused = self.refused.ids().filter(|id| !due.contains(id));
        Some(Asked {
            published,
            held: self.in_hand.iter().copied().chain(refused).collect(),
            halted: self.refused.halted(),
            due,
            most: PAGE as i32,
            size: PAGE_SIZE as i64,
        })
    }

    /// Takes what was answered to that.
    pub(super) fn take(&mut self, messages: Vec<Message>, asked: &Asked) {
        // What does not come before another that does was deleted by somebody.
        let last = messages.last().map_or(i64::MAX, |message| message.id);
        let is_gone = |id: &i64| *id < last && messages.iter().all(|message| message.id != *id);
        asked.due.iter().filter(|id| is_gone(id)).for_each(|&id| self.refused.remove(id));
        self.may_have_more |= !messages.is_empty();
        for lane in Lane::group(messages) {
            // Behind one that may be refused again nothing needs to wait here.
            let is_again = self.refused.contains(lane.first().id);
            let lane = if is_again { lane.only_first() } else { lane };
            for message in lane.iter() {
                self.in_hand.insert(message.id);
                self.bytes += message.output.size();
            }
            self.lanes.push_back(lane);
        }
    }

    /// Publishes as many as may be published at a time.
    pub(super) fn begin(&mut self) {
        while !self.is_ending && self.publishing.len() < AT_A_TIME {
            let Some(lane) = self.lanes.pop_front() else {
                return;
            };
            let publishing = publish(self.publisher.clone(), lane.first().output.clone());
            self.publishing.push(Box::pin(async { Ended(lane, publishing.await) }));
        }
    }

    /// The next that is published or refused.
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
                self.may_have_more |= rest.is_none();
                self.lanes.extend(rest);
            }
            Err(error) => {
                rest.iter().flat_map(Lane::iter).for_each(|message| self.let_go(message));
                self.may_have_more = true;
                let (id, topic) = (first.id, &first.output.topic);
                self.refused.insert(id, topic, now);
                if self.told.is_due(now) {
                    let (topic, refused) = (&**topic, self.refused.len());
                    tracing::warn!(
                        topic,
                        id,
                        refused,
                        error = &*error as &dyn std::error::Error,
                        "a message of the outbox is refused, and holds up those of its key"
                    );
                }
            }
        }
    }

    /// There may be more in the table.
    pub(super) fn look(&mut self) {
        self.may_have_more = true;
    }

    /// Nothing more is begun.
    pub(super) fn end(&mut self) {
        self.is_ending = true;
    }

    /// Whether nothing is being published.
    pub(super) fn is_idle(&self) -> bool {
        self.publishing.is_empty()
    }

    /// When a message is due that was refused.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        self.refused.next(now)
    }

    /// Whether that may give anything: what is in hand is read over each time.
    fn may_read(&self, now: Instant) -> bool {
        let is_due = self.refused.next(self.read).is_some_and(|due| due <= now);
        self.may_have_more || is_due || now >= self.read + PAUSE
    }

    fn let_go(&mut self, message: &Message) {
        self.in_hand.remove(&message.id);
        self.bytes -= message.output.size();
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
