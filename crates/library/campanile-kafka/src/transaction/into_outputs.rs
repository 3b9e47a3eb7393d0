//! The messages to send for a service's response.

use std::error::Error;
use std::fmt;
use std::sync::atomic::Ordering;

use campanile_core::{BoxError, Coordinates, Outcome, Record};
use campanile_driver::source::{Item, ItemResult};

use super::Outputs;

/// The response of a service that is [served in transactions](crate::Consumer::serve_transactional):
/// [`Outputs`] or, through the idempotency layer, an [`Outcome`] of them. A service with any other
/// response does not compile:
///
/// ```compile_fail,E0271
/// # use campanile_core::{BoxError, Record};
/// # use campanile_kafka::{Consumer, Transactions};
/// fn serve(consumer: Consumer) {
///     let service = tower::service_fn(async |_: Record| Ok::<(), BoxError>(()));
///     let _ = consumer.serve_transactional(service, Transactions::new("billing-0"));
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "a service that is served in transactions must respond with `Outputs`, not with `{Self}`",
    note = "return `Outputs::of(request.record())` from the handler, even without any output; a layer \
            around it may return `Outcome<Outputs>`"
)]
pub trait IntoOutputs: sealed::Sealed {}

mod sealed {
    pub trait Sealed {
        /// Finds the outputs to send for `record`.
        fn of(self, record: &super::Record) -> Result<super::Outputs, super::BoxError>;
    }
}

impl Outputs {
    /// Checks that these outputs belong to `record`.
    pub(super) fn check(&self, record: &Record) -> Result<(), BoxError> {
        if !self.is_of(record) {
            return Err(InvalidOutputs::Foreign(self.at.clone()).into());
        }
        Ok(())
    }
}

impl IntoOutputs for Outputs {}

impl sealed::Sealed for Outputs {
    fn of(self, record: &Record) -> Result<Outputs, BoxError> {
        self.check(record).map(|()| self)
    }
}

impl IntoOutputs for Outcome<Outputs> {}

impl sealed::Sealed for Outcome<Outputs> {
    fn of(self, record: &Record) -> Result<Outputs, BoxError> {
        match self {
            Self::Processed(outputs) if !outputs.kept.load(Ordering::Relaxed) => {
                Err(InvalidOutputs::NotStored.into())
            }
            Self::Processed(outputs) | Self::WithoutLock(outputs, _) => outputs.of(record),
            // The first run processed this same record. Its offset is not committed, so the outputs
            // are not committed either.
            Self::Duplicate(duplicate) => match duplicate.reply {
                Some(outputs) if outputs.is_of(record) => Ok(outputs),
                // Another record's outputs are committed with that record's offset.
                Some(_) => Ok(Outputs::of(record)),
                None => Err(InvalidOutputs::Unknown.into()),
            },
            Self::GivenUp(_) => Ok(Outputs::of(record)),
            other => Err(format!("cannot determine the outputs of {other:?}").into()),
        }
    }
}

/// The reason why a record's outputs cannot be determined.
#[derive(Debug)]
enum InvalidOutputs {
    /// The handler returned the outputs of the record at these coordinates.
    Foreign(Coordinates),
    /// The idempotency layer has not stored the outputs in the key's entry.
    NotStored,
    /// The duplicate's entry has no readable outputs.
    Unknown,
}

impl fmt::Display for InvalidOutputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign(at) => write!(
                f,
                "the outputs belong to {at}: create them by `Outputs::of` from the record that the \
                 handler was called with"
            ),
            Self::NotStored => f.write_str(
                "the idempotency layer does not store the outputs, so a crash before they are \
                 committed would lose them: build the layer by `Outputs::stored_by`, with a new \
                 namespace because this key is COMPLETED without its outputs",
            ),
            Self::Unknown => f.write_str(
                "the outputs of a duplicate were not stored or cannot be read, so it is unknown \
                 whether they were sent: give the layer a namespace in which all outputs are \
                 stored (`Outputs::stored_by`), or reopen the key's entry (`Store::redrive` with \
                 `force`), after which the handler runs again",
            ),
        }
    }
}

impl Error for InvalidOutputs {}

/// Extracts the messages to send for `record` from its service's response, as a `Vec<Output>`. An error
/// means that they cannot be determined; it stops the consumer.
pub(crate) fn outputs_of<T: IntoOutputs>(response: T, record: &Record) -> ItemResult {
    let messages = response.of(record)?.messages;
    Ok((!messages.is_empty()).then(|| Box::new(messages) as Item))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use campanile_core::{Duplicate, GivenUp, Output, WithoutLock};

    use super::*;

    fn record(offset: i64) -> Record {
        Record::builder("payments", 0, offset).build()
    }

    fn outputs(offset: i64) -> Outputs {
        Outputs::of(&record(offset)).with(Output::to("invoices"))
    }

    fn duplicate(reply: Option<Outputs>) -> Outcome<Outputs> {
        Outcome::Duplicate(Duplicate::new(reply, 1, SystemTime::UNIX_EPOCH))
    }

    /// The number of messages that are sent for the record at offset 7.
    fn sent(response: impl IntoOutputs) -> usize {
        response.of(&record(7)).unwrap().messages.len()
    }

    fn refused(response: impl IntoOutputs) -> String {
        response.of(&record(7)).unwrap_err().to_string()
    }

    #[test]
    fn outputs_are_sent_only_for_their_own_record() {
        assert_eq!(sent(outputs(7)), 1);
        assert_eq!(sent(Outcome::WithoutLock(outputs(7), WithoutLock::MissingKey)), 1);
        assert!(refused(outputs(8)).contains("payments/0@8"));
    }

    #[test]
    fn outputs_not_stored_by_the_layer_are_an_error() {
        assert!(refused(Outcome::Processed(outputs(7))).contains("Outputs::stored_by"));
    }

    #[test]
    fn duplicate_sends_outputs_only_at_the_first_position() {
        assert_eq!(sent(duplicate(Some(outputs(7)))), 1);
        assert_eq!(sent(duplicate(Some(outputs(8)))), 0);
        assert_eq!(sent(Outcome::<Outputs>::GivenUp(GivenUp::new(1, None))), 0);
    }

    #[test]
    fn duplicate_without_stored_outputs_is_an_error() {
        assert!(refused(duplicate(None)).contains("entry"));
    }
}
