//! Compares the clock of this process with DynamoDB's.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};

/// The resolution of the `Date` header, which is rounded down.
const DATE_RESOLUTION: Duration = Duration::from_secs(1);

/// Keeps the `Date` header of the last response to one call.
#[derive(Clone, Debug, Default)]
pub(crate) struct DateHeader(Arc<Mutex<Option<SystemTime>>>);

impl DateHeader {
    /// The time in the header; `None` if no response had one that can be read.
    pub(crate) fn get(&self) -> Option<SystemTime> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Intercept for DateHeader {
    fn name(&self) -> &'static str {
        "DateHeader"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let header = context.response().headers().get("date");
        let date = header.and_then(|text| DateTime::from_str(text, DateTimeFormat::HttpDate).ok());
        let date = date.and_then(|date| SystemTime::try_from(date).ok());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = date;
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
    use super::*;

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
}
