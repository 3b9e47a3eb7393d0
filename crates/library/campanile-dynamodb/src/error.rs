//! Why a request failed.

use std::error::Error;
use std::fmt;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use campanile_core::BoxError;
use campanile_idempotency::StoreError;

/// Converts an error of the SDK, and adds what to do about it.
///
/// Every error leaves open whether the command was applied, also that of a read: an earlier request of
/// the same command may have written.
pub(crate) fn store_error<E, R>(error: SdkError<E, R>, table: &str) -> StoreError
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    R: fmt::Debug + Send + Sync + 'static,
{
    match &error {
        SdkError::TimeoutError(_) => StoreError::timeout(error),
        SdkError::DispatchFailure(failure) if failure.is_timeout() => StoreError::timeout(error),
        SdkError::ServiceError(service) => {
            // Without the response, which may contain an entry.
            let (code, message) = (service.err().code(), service.err().message());
            let answer =
                format!("{}: {}", code.unwrap_or("no code"), message.unwrap_or("no message"));
            StoreError::unavailable(match code.and_then(advice) {
                Some(advice) => format!("the DynamoDB table `{table}` {advice}").with(answer),
                None => format!("DynamoDB refused a request for the table `{table}`").with(answer),
            })
        }
        SdkError::DispatchFailure(failure) if failure.is_io() => {
            StoreError::unavailable("DynamoDB cannot be reached".to_owned().with(error))
        }
        SdkError::ConstructionFailure(_) | SdkError::DispatchFailure(_) => {
            let advice = "the request was not sent; check that the SDK's configuration has a region and valid \
                credentials";
            StoreError::unavailable(advice.to_owned().with(error))
        }
        // Without the response here, too.
        _ => StoreError::unavailable(match error.into_source() {
            Ok(source) => "DynamoDB's response cannot be read".to_owned().with(source),
            Err(error) => error.into(),
        }),
    }
}

/// What to do about an error of the service, as the end of a sentence about the table.
fn advice(code: &str) -> Option<&'static str> {
    Some(match code {
        "ResourceNotFoundException" => {
            "does not exist or is not active yet; create it with `campanile_dynamodb::create_table`, and check \
             the region and the account of the credentials"
        }
        "AccessDeniedException" => {
            "may not be used with these credentials; allow `dynamodb:GetItem` and `dynamodb:PutItem` on it"
        }
        "ExpiredTokenException"
        | "IncompleteSignatureException"
        | "InvalidSignatureException"
        | "MissingAuthenticationTokenException"
        | "UnrecognizedClientException" => {
            "was refused, because the credentials are invalid or have expired; renew them, and check the \
             machine's clock"
        }
        "ProvisionedThroughputExceededException"
        | "RequestLimitExceeded"
        | "ThrottlingException" => {
            "is throttled; use its on-demand mode, raise its capacity or the account's quota, or process fewer \
             records at a time"
        }
        "ValidationException" => {
            "refused the request; check the table's name; it needs the partition key `id` of type S and no sort \
             key, and an item, with its reply and steps, has at most 400 KB"
        }
        _ => return None,
    })
}

/// An error with advice on how to fix it.
#[derive(Debug)]
struct WithAdvice {
    advice: String,
    error: BoxError,
}

trait Advise {
    fn with(self, error: impl Into<BoxError>) -> BoxError;
}

impl Advise for String {
    fn with(self, error: impl Into<BoxError>) -> BoxError {
        WithAdvice { advice: self, error: error.into() }.into()
    }
}

impl fmt::Display for WithAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.advice)
    }
}

impl Error for WithAdvice {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.error)
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::error::{ConnectorError, ErrorMetadata};
    use campanile_idempotency::StoreErrorKind;

    use super::*;

    fn converted(error: SdkError<ErrorMetadata, ()>) -> (StoreErrorKind, String) {
        let error = store_error(error, "entries");
        let text = error.source().map(ToString::to_string).unwrap_or_default();
        (error.kind(), text)
    }

    #[test]
    fn refusals_say_what_to_do() {
        for (code, advice) in [
            ("ResourceNotFoundException", "create it with `campanile_dynamodb::create_table`"),
            ("AccessDeniedException", "allow `dynamodb:GetItem` and `dynamodb:PutItem` on it"),
            ("ExpiredTokenException", "renew them"),
            ("IncompleteSignatureException", "renew them"),
            ("InvalidSignatureException", "renew them"),
            ("MissingAuthenticationTokenException", "renew them"),
            ("UnrecognizedClientException", "renew them"),
            ("ProvisionedThroughputExceededException", "raise its capacity"),
            ("RequestLimitExceeded", "raise its capacity"),
            ("ThrottlingException", "raise its capacity"),
            ("ValidationException", "check the table's name"),
            ("InternalServerError", "DynamoDB refused a request for the table `entries`"),
        ] {
            let error = ErrorMetadata::builder().code(code).build();
            let (kind, text) = converted(SdkError::service_error(error, ()));
            assert_eq!(kind, StoreErrorKind::Unavailable);
            assert!(text.contains("`entries`") && text.contains(advice), "{code}: {text}");
        }
    }

    #[test]
    fn timeouts_are_distinguished_from_other_failures() {
        let timeout = SdkError::timeout_error("the deadline has passed");
        assert_eq!(converted(timeout).0, StoreErrorKind::Timeout);
        let timeout = ConnectorError::timeout("no connection in time".into());
        assert_eq!(converted(SdkError::dispatch_failure(timeout)).0, StoreErrorKind::Timeout);
        let (kind, text) =
            converted(SdkError::dispatch_failure(ConnectorError::io("connection reset".into())));
        assert_eq!((kind, &*text), (StoreErrorKind::Unavailable, "DynamoDB cannot be reached"));
        let (kind, text) = converted(SdkError::construction_failure("no region"));
        assert_eq!(kind, StoreErrorKind::Unavailable);
        assert!(text.contains("has a region and valid credentials"), "{text}");
    }
}
