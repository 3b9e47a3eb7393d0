//! The relay's dispatcher: buffered messages, and the results so far.

use std::collections::{HashSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::time::Duration;

use campanile_core::{BoxError, BoxableError, Output};
use futures_util::StreamExt;
use futures_util::stream::{FuturesUnordered, SelectNextSome};
use tokio::time::Instant;
use tower_service::Service;

use super::key_queue::{KeyQueue, Message};
use super::refused::Refused;
use super::relay::POLL_INTERVAL;
use super::session::ExchangeRequest;
use super::topics::{Topics, backoff};
use crate::log_limit::LogLimit;

/// The maximum number of messages in flight, each with a different key.
const MAX_IN_FLIGHT: usize = 64;

/// The maximum number of those that were refused before: other messages must not wait for messages
/// that may take long to fail.
const MAX_RETRIES_IN_FLIGHT: usize = 16;

/// The maximum number of messages, and of their bytes, in one read. Twice as many may be buffered.
const MAX_PAGE_MESSAGES: usize = 250;
const MAX_PAGE_BYTES: usize = 2 << 20;

/// The minimum ratio of the pause between two reads to the duration of a read, unless there is a
/// reason to read. A table with many unpublishable messages takes long to scan.
const READ_PAUSE_FACTOR: u32 = 20;

type PublishFuture = Pin<Box<dyn Future<Output = PublishResult> + Send>>;

/// The result of the first message of a queue.
pub(super) struct PublishResult(KeyQueue, Result<(), BoxError>);

/// The buffered messages. Each is in a queue that waits or that has its first message in flight.
pub(super) struct Dispatcher<P> {
    publisher: P,
    queues: VecDeque<KeyQueue>,
    in_flight: FuturesUnordered<PublishFuture>,
    buffered: HashSet<i64>,
    bytes: usize,
    /// Acknowledged messages that are to be deleted.
    published: Vec<i64>,
    refused: Refused,
    topics: Topics,
    log_limit: LogLimit,
    /// Whether the table may have messages that could be taken.
    has_more: bool,
    /// When the table was last read, how long that took, and when the last statement was sent.
    last_read: Instant,
    read_duration: Duration,
    last_request: Instant,
    /// Whether a shutdown has begun, after which no more messages are taken.
    is_shutting_down: bool,
}

impl<P> Dispatcher<P>
where
    P: Service<Output> + Clone + Send + 'static,
    P::Error: BoxableError,
    P::Future: Send,
{
    pub(super) fn new(publisher: P) -> Self {
        let now = Instant::now();
        Self {
            publisher,
            queues: VecDeque::new(),
            in_flight: FuturesUnordered::new(),
            buffered: HashSet::new(),
            bytes: 0,
            published: Vec::new(),
            refused: Refused::new(backoff()),
            topics: Topics::new(backoff()),
            log_limit: LogLimit::default(),
            has_more: true,
            last_read: now,
            read_duration: Duration::ZERO,
            last_request: now,
            is_shutting_down: false,
        }
    }

    /// Starts over with a new session. The buffered messages will be read again; the refused ones
    /// are remembered.
    pub(super) fn reset(&mut self) {
        self.queues.clear();
        self.in_flight.clear();
        self.buffered.clear();
        self.bytes = 0;
        self.published.clear();
        self.topics.release_all();
        self.has_more = true;
        self.last_request = Instant::now();
    }

    /// Builds the next statement's arguments, if a statement is needed.
    pub(super) fn next_request(&mut self, now: Instant) -> Option<ExchangeRequest> {
        let has_room = self.buffered.len() <= MAX_PAGE_MESSAGES
            && self.bytes <= MAX_PAGE_BYTES
            && !self.is_shutting_down;
        let is_to_read = has_room && self.should_read(now);
        let due = if has_room { self.due(now) } else { Vec::new() };
        // A leader that sends no statement for long loses the lead.
        let must_keep_alive = now >= self.last_request + POLL_INTERVAL;
        if self.published.is_empty() && due.is_empty() && !is_to_read && !must_keep_alive {
            return None;
        }
        self.last_request = now;
        let mut request = ExchangeRequest {
            published: std::mem::take(&mut self.published),
            due,
            ..ExchangeRequest::default()
        };
        if is_to_read {
            self.has_more = false;
            self.last_read = now;
            request.held = self.buffered.iter().copied().chain(self.refused.ids()).collect();
            request.full_topics = self.topics.full(now);
            (request.max_messages, request.max_bytes) =
                (MAX_PAGE_MESSAGES as i32, MAX_PAGE_BYTES as i64);
        }
        Some(request)
    }

    /// Takes the answer to that statement, as far as each topic may get more messages.
    pub(super) fn accept(
        &mut self,
        messages: Vec<Message>,
        request: &ExchangeRequest,
        now: Instant,
    ) {
        let is_missing = |id: &i64| messages.iter().all(|message| message.id != *id);
        request.due.iter().filter(|id| is_missing(id)).for_each(|&id| self.refused.remove(id));
        if request.max_messages > 0 {
            self.read_duration = now - self.last_read;
        }
        let (retries, others): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|message| self.refused.contains(message.id));
        self.has_more |= !others.is_empty();
        let topics_of_others: HashSet<_> =
            others.iter().map(|message| message.output.topic.clone()).collect();
        let is_its_turn = |message: &Message| {
            let topic = &message.output.topic;
            !(topics_of_others.contains(topic) && self.topics.wants_other_message(topic))
        };
        let retries: Vec<_> = retries.into_iter().filter(is_its_turn).collect();
        for queue in KeyQueue::group(retries).into_iter().chain(KeyQueue::group(others)) {
            let topic = queue.first().output.topic.clone();
            if !self.topics.has_room(&topic, now) {
                continue;
            }
            // If this message is refused, the later ones need not wait in memory.
            let queue =
                if self.topics.is_healthy(&topic) { queue } else { queue.truncate_to_first() };
            for message in queue.iter() {
                self.buffered.insert(message.id);
                self.bytes += message.output.size();
                self.topics.reserve(&topic);
            }
            self.queues.push_back(queue);
        }
    }

    /// Publishes as many messages as may be in flight.
    pub(super) fn start_publishing(&mut self) {
        while !self.is_shutting_down && self.in_flight.len() < MAX_IN_FLIGHT {
            let Some(queue) = self.queues.pop_front() else {
                return;
            };
            let publishing = publish(self.publisher.clone(), queue.first().output.clone());
            self.in_flight.push(Box::pin(async { PublishResult(queue, publishing.await) }));
        }
    }

    /// Waits for the next message to be published or refused.
    pub(super) fn next_result(&mut self) -> SelectNextSome<'_, FuturesUnordered<PublishFuture>> {
        self.in_flight.select_next_some()
    }

    pub(super) fn handle_result(
        &mut self,
        PublishResult(queue, result): PublishResult,
        now: Instant,
    ) {
        let (first, rest) = queue.pop_first();
        self.release(&first);
        match result {
            Ok(()) => {
                self.published.push(first.id);
                self.refused.remove(first.id);
                let accepts_more = self.topics.acknowledge(&first.output.topic);
                self.has_more |= accepts_more || rest.is_none();
                self.queues.extend(rest);
            }
            Err(error) => {
                rest.iter().flat_map(KeyQueue::iter).for_each(|message| self.release(message));
                let (id, topic) = (first.id, &first.output.topic);
                self.refused.insert(id, topic, now);
                self.topics.refuse(topic, now);
                if self.log_limit.allow(now) {
                    tracing::warn!(
                        topic = &**topic,
                        id,
                        refused = self.refused.len(),
                        topic_waits = !self.topics.is_healthy(topic),
                        error = &*error as &dyn std::error::Error,
                        "outbox message refused; retrying while later messages of its key wait"
                    );
                }
            }
        }
    }

    /// Records that the table may have more messages.
    pub(super) fn mark_has_more(&mut self) {
        self.has_more = true;
    }

    /// Takes and publishes no more messages.
    pub(super) fn shut_down(&mut self) {
        self.is_shutting_down = true;
    }

    /// Whether no message is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// The next time after `now` at which there is something to do, if nothing happens until then.
    pub(super) fn next_wakeup(&self, now: Instant) -> Option<Instant> {
        let after_rest = Some(self.last_read + 2 * self.read_duration)
            .filter(|&after_rest| after_rest > now && self.has_more);
        [self.refused.next_retry(now), self.topics.next_retry(now), after_rest]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether a read of the table may return anything. Each read scans the messages that are held
    /// up, so reads take at most half of the time.
    fn should_read(&self, now: Instant) -> bool {
        let is_due = |next: Option<Instant>| next.is_some_and(|next| next <= now);
        let has_reason = self.has_more || is_due(self.topics.next_retry(self.last_read));
        let is_poll_due =
            now >= self.last_read + POLL_INTERVAL.max(READ_PAUSE_FACTOR * self.read_duration);
        now >= self.last_read + 2 * self.read_duration && (has_reason || is_poll_due)
    }

    /// Lists the refused messages that are due for a retry.
    fn due(&self, now: Instant) -> Vec<i64> {
        let retries = self.buffered.iter().filter(|id| self.refused.contains(**id)).count();
        let limit = MAX_RETRIES_IN_FLIGHT.saturating_sub(retries);
        self.refused.due(now, limit, &self.buffered, |topic| self.topics.has_room(topic, now))
    }

    fn release(&mut self, message: &Message) {
        self.buffered.remove(&message.id);
        self.bytes -= message.output.size();
        self.topics.release(&message.output.topic);
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

#[cfg(test)]
mod tests;
