//! The dispatcher without a server: what is read when, and what is published.

use std::future::pending;

use futures_util::FutureExt;
use tower::util::BoxCloneService;

use super::super::topics::LONGER_THAN_BACKOFF;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

type TestDispatcher = Dispatcher<BoxCloneService<Output, (), BoxError>>;

/// Creates a dispatcher whose publisher refuses the messages to the topic "missing", answers none to
/// the topic "silent", and acknowledges all others.
fn dispatcher() -> (TestDispatcher, Instant) {
    let publisher = tower::service_fn(|output: Output| async move {
        match &*output.topic {
            "missing" => Err("unknown topic".into()),
            "silent" => pending().await,
            _ => Ok(()),
        }
    });
    (Dispatcher::new(BoxCloneService::new(publisher)), Instant::now())
}

fn message(id: i64, topic: &str, key: &str) -> Message {
    Message { id, output: Output::to(topic).key(key.to_owned()) }
}

/// Creates messages with these ids, each with its own key.
fn messages(ids: impl IntoIterator<Item = i64>, topic: &str) -> Vec<Message> {
    ids.into_iter().map(|id| message(id, topic, &id.to_string())).collect()
}

/// Sends a statement, and takes the messages as its answer.
fn exchange(
    dispatcher: &mut TestDispatcher,
    messages: Vec<Message>,
    now: Instant,
) -> ExchangeRequest {
    let request = dispatcher.next_request(now).expect("a statement is needed");
    dispatcher.accept(messages, &request, now);
    request
}

/// Takes the result of one message, if there is one.
fn take_result(dispatcher: &mut TestDispatcher, now: Instant) -> bool {
    dispatcher.start_publishing();
    if dispatcher.is_idle() {
        return false;
    }
    let result = dispatcher.next_result().now_or_never();
    result.map(|result| dispatcher.handle_result(result, now)).is_some()
}

fn take_results(dispatcher: &mut TestDispatcher, now: Instant) {
    while take_result(dispatcher, now) {}
}

fn is_read(request: &ExchangeRequest) -> bool {
    request.max_messages > 0
}

#[test]
fn empty_table_is_read_at_once_and_then_each_second() {
    let (mut dispatcher, now) = dispatcher();
    let request = exchange(&mut dispatcher, Vec::new(), now);
    assert_eq!((request.max_messages, request.max_bytes), (250, 2 << 20));
    assert_eq!(dispatcher.next_wakeup(now), None);
    assert!(dispatcher.next_request(now + Duration::from_millis(999)).is_none());
    assert!(is_read(&exchange(&mut dispatcher, Vec::new(), now + SECOND)));
}

#[test]
fn table_is_read_on_until_it_returns_nothing() {
    let (mut dispatcher, now) = dispatcher();
    exchange(&mut dispatcher, messages(1..=3, "bills"), now);
    let mut request = exchange(&mut dispatcher, Vec::new(), now);
    request.held.sort_unstable();
    assert!(is_read(&request));
    assert_eq!(request.held, [1, 2, 3]);
    assert!(dispatcher.next_request(now).is_none());
    dispatcher.mark_has_more();
    assert!(is_read(&exchange(&mut dispatcher, Vec::new(), now)));
}

#[test]
fn slow_reads_take_at_most_half_of_the_time() {
    let (mut dispatcher, now) = dispatcher();
    let request = dispatcher.next_request(now).unwrap();
    dispatcher.accept(messages([1], "bills"), &request, now + 10 * SECOND);
    assert_eq!(dispatcher.next_wakeup(now + 10 * SECOND), Some(now + 20 * SECOND));
    let keepalive = exchange(&mut dispatcher, Vec::new(), now + 19 * SECOND);
    assert!(!is_read(&keepalive));
    assert_eq!(dispatcher.next_wakeup(now + 20 * SECOND), None);
    assert!(is_read(&exchange(&mut dispatcher, Vec::new(), now + 20 * SECOND)));
}

#[test]
fn slow_reads_that_return_nothing_take_a_twentieth_of_the_time() {
    let (mut dispatcher, now) = dispatcher();
    let request = dispatcher.next_request(now).unwrap();
    dispatcher.accept(Vec::new(), &request, now + 10 * SECOND);
    assert_eq!(dispatcher.next_wakeup(now + 10 * SECOND), None);
    assert!(!is_read(&exchange(&mut dispatcher, Vec::new(), now + 199 * SECOND)));
    assert!(is_read(&exchange(&mut dispatcher, Vec::new(), now + 200 * SECOND)));
}

#[test]
fn acknowledged_message_is_deleted_once() {
    let (mut dispatcher, now) = dispatcher();
    exchange(&mut dispatcher, messages([1], "bills"), now);
    take_results(&mut dispatcher, now);
    assert_eq!(exchange(&mut dispatcher, Vec::new(), now).published, [1]);
    assert!(exchange(&mut dispatcher, Vec::new(), now + SECOND).published.is_empty());
    assert_eq!((dispatcher.buffered.len(), dispatcher.bytes), (0, 0));
}

#[test]
fn message_is_read_after_the_last_of_its_key() {
    let (mut dispatcher, now) = dispatcher();
    dispatcher.topics.acknowledge(&"bills".into());
    exchange(&mut dispatcher, vec![message(1, "bills", "a"), message(2, "bills", "a")], now);
    exchange(&mut dispatcher, Vec::new(), now);
    assert!(take_result(&mut dispatcher, now));
    let request = exchange(&mut dispatcher, Vec::new(), now);
    assert_eq!((request.published.as_slice(), is_read(&request)), (&[1][..], false));
    assert!(take_result(&mut dispatcher, now));
    let request = exchange(&mut dispatcher, Vec::new(), now);
    assert_eq!((request.published.as_slice(), is_read(&request)), (&[2][..], true));
}

#[test]
fn refused_message_is_held_and_retried_after_a_backoff() {
    let (mut dispatcher, mut now) = dispatcher();
    exchange(&mut dispatcher, messages([1], "missing"), now);
    take_results(&mut dispatcher, now);
    assert_eq!((dispatcher.buffered.len(), dispatcher.bytes), (0, 0));
    for _ in 0..3 {
        now += LONGER_THAN_BACKOFF;
        let request = exchange(&mut dispatcher, messages([1], "missing"), now);
        assert_eq!((request.due, request.held), (vec![1], vec![1]));
        assert!(dispatcher.refused.contains(1));
        take_results(&mut dispatcher, now);
    }
    // It has been deleted.
    exchange(&mut dispatcher, Vec::new(), now + LONGER_THAN_BACKOFF);
    assert_eq!(dispatcher.refused.len(), 0);
}

#[test]
fn too_many_buffered_messages_delay_the_next_read() {
    let (mut dispatcher, now) = dispatcher();
    dispatcher.topics.acknowledge(&"bills".into());
    exchange(&mut dispatcher, messages(1..=250, "bills"), now);
    assert!(is_read(&exchange(&mut dispatcher, messages([251], "bills"), now)));
    assert!(dispatcher.next_request(now).is_none());
    assert!(!is_read(&exchange(&mut dispatcher, Vec::new(), now + SECOND)));
    take_results(&mut dispatcher, now);
    assert!(is_read(&exchange(&mut dispatcher, Vec::new(), now + SECOND)));
}

#[test]
fn too_many_buffered_bytes_delay_the_next_read() {
    let (mut dispatcher, now) = dispatcher();
    let mut large = message(1, "bills", "a");
    large.output = large.output.payload(vec![0; MAX_PAGE_BYTES]);
    exchange(&mut dispatcher, vec![large], now);
    assert!(dispatcher.next_request(now).is_none());
    take_results(&mut dispatcher, now);
    assert!(is_read(&exchange(&mut dispatcher, Vec::new(), now)));
}

#[test]
fn at_most_64_messages_are_in_flight() {
    let (mut dispatcher, now) = dispatcher();
    dispatcher.topics.acknowledge(&"silent".into());
    exchange(&mut dispatcher, messages(1..=65, "silent"), now);
    dispatcher.start_publishing();
    assert_eq!((dispatcher.in_flight.len(), dispatcher.queues.len()), (64, 1));
}

#[test]
fn nothing_is_read_or_published_during_shutdown() {
    let (mut dispatcher, now) = dispatcher();
    exchange(&mut dispatcher, messages([1], "bills"), now);
    dispatcher.shut_down();
    take_results(&mut dispatcher, now);
    assert!(dispatcher.next_request(now).is_none());
    let request = exchange(&mut dispatcher, Vec::new(), now + SECOND);
    assert_eq!((request.published.as_slice(), is_read(&request)), (&[][..], false));
}

#[test]
fn new_session_reads_all_but_the_refused_messages_again() {
    let (mut dispatcher, now) = dispatcher();
    let all = [("bills", 1), ("missing", 2), ("silent", 3)];
    exchange(&mut dispatcher, all.map(|(topic, id)| message(id, topic, "a")).into(), now);
    take_results(&mut dispatcher, now);
    assert!(!dispatcher.is_idle());
    dispatcher.reset();
    assert!(dispatcher.is_idle());
    let request = exchange(&mut dispatcher, Vec::new(), now);
    assert!(is_read(&request));
    assert_eq!((request.published, request.held), (vec![], vec![2]));
    assert_eq!((dispatcher.buffered.len(), dispatcher.bytes), (0, 0));
}
