//! Named awaits.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

use tokio::time::sleep;

thread_local! {
    static LAST: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// An await at which the [kit](super) can stop a handler. Its name is part of the failure's text.
///
/// A fake of a database or of another service completes at once, so a handler that calls it never waits
/// there, and cannot be stopped. Put a point before and after the effect of the fake: a real call can
/// fail before its effect, and after it.
///
/// ```
/// # use std::sync::Mutex;
/// use campanile_test::torture::point;
///
/// # struct FakeProvider { charges: Mutex<Vec<String>> }
/// impl FakeProvider {
///     async fn charge(&self, payment: &str) {
///         point("charge requested").await;
///         self.charges.lock().unwrap().push(payment.to_owned());
///         point("charged").await;
///     }
/// }
/// ```
///
/// It takes a millisecond of tokio's time, in other tests as well.
///
/// # Cancellation
/// It can be dropped at any time.
pub async fn point(name: &'static str) {
    let mut wait = pin!(sleep(Duration::from_millis(1)));
    poll_fn(|cx| {
        let waited = wait.as_mut().poll(cx);
        if waited.is_pending() {
            LAST.set(Some(name));
        }
        waited
    })
    .await;
}

/// Takes the name of the last point that this thread has waited at.
pub(super) fn take_last() -> Option<&'static str> {
    LAST.take()
}
