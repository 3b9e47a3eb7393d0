//! What processed records hand over, to be committed together with their offsets.

use std::any::Any;

use campanile_core::BoxError;

/// What a processed record hands over.
pub type Item = Box<dyn Any + Send>;

/// What a service's response hands over, which is nothing in most consumers. The error says why that is
/// unknown.
pub type ItemResult = Result<Option<Item>, BoxError>;

/// Holds the items of one assignment of a partition until they are committed.
pub trait Sink: Any + Send + Sync {
    /// Holds the item of the record at this offset, which is finished.
    fn hold(&self, offset: i64, item: Item);

    /// Releases the items of the records below this watermark to the next commit, and calls
    /// `set_watermark`, in one step. Does neither after [`close`](Self::close).
    fn advance(&self, watermark: i64, set_watermark: &dyn Fn());

    /// Drops the items of records from this offset on, since the position was reset to it.
    fn reset(&self, offset: i64);

    /// Drops the items of records from this offset on that are not released yet. The watermark will not
    /// pass this offset.
    fn stop_at(&self, offset: i64);

    /// Drops all items and accepts no more, since the partition is given up.
    fn close(&self);
}
