//! A message's headers, with their names as bytes.
//!
//! The crate's only unsafe module. rdkafka's own access to a header panics on a name that is not
//! UTF-8, and a name is whatever a producer has sent.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::{ptr, slice};

use rdkafka::bindings::{
    rd_kafka_header_get_all, rd_kafka_message_headers, rd_kafka_resp_err_t as Code,
};
use rdkafka::message::BorrowedMessage;

/// Each header's name and value, in order. A value that is null is `None`.
///
/// A name ends at its first NUL byte, as librdkafka hands it out. Headers that librdkafka cannot
/// parse are none.
pub(super) fn iter<'m>(
    message: &'m BorrowedMessage<'_>,
) -> impl Iterator<Item = (&'m [u8], Option<&'m [u8]>)> {
    let mut headers = ptr::null_mut();
    // SAFETY: the message is borrowed, so its pointer is valid. The headers belong to the message
    // and live as long; without any, `headers` stays null.
    let code = unsafe { rd_kafka_message_headers(message.ptr(), &mut headers) };
    let count = if code == Code::RD_KAFKA_RESP_ERR_NO_ERROR {
        usize::MAX
    } else {
        0
    };
    (0..count).map_while(move |index| {
        let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
        // SAFETY: there are headers, for else `count` is 0, and the message is borrowed as long as
        // this iterator. Beyond the last header the call answers with an error and writes nothing.
        let code =
            unsafe { rd_kafka_header_get_all(headers, index, &mut name, &mut value, &mut size) };
        if code != Code::RD_KAFKA_RESP_ERR_NO_ERROR {
            return None;
        }
        // SAFETY: without an error `name` is a string that ends with NUL, and lives as long as the
        // message.
        let name = unsafe { CStr::from_ptr(name) };
        // SAFETY: a value that is not null has `size` bytes, which live as long as the message.
        let value =
            (!value.is_null()).then(|| unsafe { slice::from_raw_parts(value.cast::<u8>(), size) });
        Some((name.to_bytes(), value))
    })
}
