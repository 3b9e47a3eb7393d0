//! Where a scan continues.

use bytes::{Buf, BufMut};
use campanile_idempotency::{ScanCursor, StoreError};

/// Where a scan continues. Encoded as the fields in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// The hash of the cluster's slots, which must not change during the scan. 0 without a cluster.
    pub(super) slots: u64,
    /// The number of the master in the order of their addresses. 0 without a cluster.
    pub(super) master: u16,
    /// Where the `SCAN` of this server continues.
    pub(super) cursor: u64,
    /// The `run_id` of the server: another process has other cursors. Empty if the `SCAN` of this
    /// server has not begun.
    pub(super) run_id: Box<[u8]>,
}

impl Position {
    const MIN_LEN: usize = 18;

    /// `None`: the start of a scan.
    pub(super) fn decode(cursor: &ScanCursor) -> Result<Option<Self>, StoreError> {
        let mut bytes = cursor.as_bytes();
        match bytes.len() {
            0 => Ok(None),
            1..Self::MIN_LEN => Err(invalid_cursor()),
            _ => Ok(Some(Self {
                slots: bytes.get_u64(),
                master: bytes.get_u16(),
                cursor: bytes.get_u64(),
                run_id: bytes.into(),
            })),
        }
    }

    pub(super) fn encode(&self) -> ScanCursor {
        let Self { slots, master, cursor, run_id } = self;
        let mut bytes = Vec::with_capacity(Self::MIN_LEN + run_id.len());
        bytes.put_u64(*slots);
        bytes.put_u16(*master);
        bytes.put_u64(*cursor);
        bytes.put_slice(run_id);
        ScanCursor::from_bytes(bytes)
    }
}

pub(super) fn invalid_cursor() -> StoreError {
    StoreError::unreadable("the cursor is not one of this store; start the scan without a cursor")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_round_trips_and_short_one_is_refused() {
        let position = Position { slots: 1, master: 2, cursor: u64::MAX, run_id: (*b"abc").into() };
        for position in [position, Position::default()] {
            assert_eq!(Position::decode(&position.encode()).unwrap(), Some(position));
        }
        assert_eq!(Position::decode(&ScanCursor::default()).unwrap(), None);
        assert!(Position::decode(&ScanCursor::from_bytes(*b"17 bytes, too few")).is_err());
    }
}
