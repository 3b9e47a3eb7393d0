//! Compares the clock of this process with DynamoDB's.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::config::interceptors::{
    BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};
use campanile_core::clock::Clock;

/// The resolution of the `Date` header, which is rounded down.
const DATE_RESOLUTION: Duration = Duration::from_secs(1);

/// The last request of one call, which may be sent several times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    /// The clock of this process before the request was sent.
    pub(crate) sent: SystemTime,
    /// The monotonic clock at that time.
    sent_at: Duration,
    /// The `Date` header of the response; `None` if there is none that can be read.
    pub(crate) date: Option<SystemTime>,
}

impl Exchange {
    /// Returns the time since the request was sent, by the clock from before it. Unlike the clock itself,
    /// this does not jump while the request is in flight.
    pub(crate) fn now(&self) -> SystemTime {
        self.sent + Clock::boot().now().saturating_sub(self.sent_at)
    }
}

/// Keeps the last exchange of one call.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastExchange(Arc<Mutex<Option<Exchange>>>);

impl LastExchange {
    pub(crate) fn get(&self) -> Option<Exchange> {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Exchange>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Intercept for LastExchange {
    fn name(&self) -> &'static str {
        "LastExchange"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        components: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let sent = components.time_source().unwrap_or_default().now();
        *self.lock() = Some(Exchange { sent, sent_at: Clock::boot().now(), date: None });
        Ok(())
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let header = context.response().headers().get("date");
        let date = header.and_then(|text| DateTime::from_str(text, DateTimeFormat::HttpDate).ok());
        if let Some(exchange) = &mut *self.lock() {
            exchange.date = date.and_then(|date| SystemTime::try_from(date).ok());
        }
        Ok(())
    }
}

/// The clock of this process is further from DynamoDB's than is allowed.
#[derive(Debug)]
pub(crate) struct ClockDifference {
    is_ahead: bool,
    at_least: Duration,
    max: Duration,
}

impl fmt::Display for ClockDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_ahead, at_least, max } = self;
        let direction = if *is_ahead { "ahead of" } else { "behind" };
        write!(
            f,
            "the clock of this process is at least {at_least:?} {direction} DynamoDB's, and {max:?} is \
             allowed: synchronize the machine's clock, for example with the Amazon Time Sync Service \
             (setting: DynamoDbConfig::with_max_clock_difference)"
        )
    }
}

impl std::error::Error for ClockDifference {}

/// Fails if the clock certainly differs by more than `max`, given the `Date` of a response and the
/// clock before the request was sent and after the response arrived. A slow response causes no error.
pub(crate) fn check(
    sent: SystemTime,
    date: SystemTime,
    received: SystemTime,
    max: Duration,
) -> Result<(), ClockDifference> {
    let ahead = sent.duration_since(date + DATE_RESOLUTION).unwrap_or_default();
    let behind = date.duration_since(received).unwrap_or_default();
    for (is_ahead, at_least) in [(true, ahead), (false, behind)] {
        if at_least > max {
            return Err(ClockDifference { is_ahead, at_least, max });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::config::{BehaviorVersion, Config};

    use super::*;
    use crate::DynamoDbConfig;

    #[test]
    fn time_of_an_exchange_advances_from_when_it_was_sent() {
        let (sent, elapsed) = (SystemTime::UNIX_EPOCH, Duration::from_secs(10));
        let exchange = Exchange { sent, sent_at: Clock::boot().now() - elapsed, date: None };
        let now = exchange.now();
        assert!(now >= sent + elapsed && now < sent + elapsed * 10, "{now:?}");
    }

    fn checked(sent: u64, date: u64, received: u64) -> Option<String> {
        let time = |tenths| SystemTime::UNIX_EPOCH + Duration::from_millis(tenths * 100);
        let result = check(time(sent), time(date), time(received), Duration::from_secs(1));
        result.err().map(|error| error.to_string())
    }

    #[test]
    fn difference_up_to_the_limit_is_accepted() {
        for (sent, received) in [(900, 990), (1_000, 1_001), (1_020, 1_021), (1, 9_000)] {
            assert_eq!(checked(sent, 1_000, received), None, "{sent} {received}");
        }
    }

    #[test]
    fn larger_difference_is_refused_with_its_direction() {
        let text = checked(1_021, 1_000, 1_022).unwrap();
        assert!(text.contains("1.1s ahead of DynamoDB's, and 1s is allowed"), "{text}");
        let text = checked(980, 1_000, 988).unwrap();
        assert!(text.contains("1.2s behind DynamoDB's"), "{text}");
    }

    #[test]
    fn clocks_that_pass_differ_by_less_than_the_margin_of_a_lock() {
        let sdk = Config::builder().behavior_version(BehaviorVersion::latest()).build();
        let config = DynamoDbConfig::new(sdk, "campanile");
        let (request, max) = (config.request_timeout(), config.max_clock_difference);
        let date = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        // The response arrives at once: the time that it takes is in the deadline of the lock.
        let passes = |clock| check(clock - request, date, clock, max).is_ok();
        let differences = || (0..10_000).map(Duration::from_millis);
        // The service answers at the beginning of a second, and at its end.
        let ahead = differences().filter(|by| passes(date + *by)).max().unwrap();
        let end = date + Duration::from_millis(999);
        let behind = differences().filter(|by| passes(end - *by)).max().unwrap();
        // A tenth of the default TTL of 30 s.
        assert!(ahead + behind < Duration::from_secs(3), "{ahead:?} {behind:?}");
    }
}
