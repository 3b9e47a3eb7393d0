//! The encoding of outputs as the reply in a key's entry.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use campanile_core::{BoxError, Coordinates, Output, Record, Timestamp, error, millis};
use campanile_idempotency::policy::OnLargeReply;
use campanile_idempotency::{IdempotencyLayer, ReplyCodec};

use super::Outputs;

/// The first byte. Any change of the format that follows needs a new version.
const VERSION: u8 = 2;

/// Stores [`Outputs`] in the entry of their key, in a compact binary format with a version. Set by
/// [`Outputs::stored_by`].
#[derive(Clone, Copy, Debug, Default)]
pub struct OutputsCodec;

impl Outputs {
    /// Configures the layer to store the handler's outputs in the key's entry. If a record's key is
    /// COMPLETED but its transaction was not committed, the record is delivered again as a duplicate,
    /// and its outputs are sent from the entry.
    ///
    /// Outputs that are larger than
    /// [`with_max_reply_bytes`](campanile_idempotency::IdempotencyConfig::with_max_reply_bytes) fail their record permanently,
    /// because they could be lost; raise the limit for such outputs.
    pub fn stored_by<E, C>(layer: IdempotencyLayer<E, C>) -> IdempotencyLayer<E, OutputsCodec> {
        layer.with_reply(OutputsCodec).on_large_reply(OnLargeReply::Fail)
    }
}

impl ReplyCodec<Outputs> for OutputsCodec {
    /// Refuses outputs of another record: once stored, they would be considered sent with that record's
    /// offset.
    fn check(&self, outputs: &Outputs, record: Option<&Record>) -> Result<(), BoxError> {
        match record {
            // A retry does not fix a handler that mixes up its responses.
            Some(record) => outputs.check(record).map_err(|error| error::stop(error).into()),
            None => Ok(()),
        }
    }

    fn encode(&self, outputs: &Outputs) -> Result<Option<Bytes>, BoxError> {
        let mut to = BytesMut::new();
        to.put_u8(VERSION);
        put(&mut to, outputs.at.topic.as_bytes());
        to.put_i32(outputs.at.partition);
        to.put_i64(outputs.at.offset);
        put_option(&mut to, outputs.topic_id.as_ref().map(|id| id.as_bytes()));
        put_length(&mut to, outputs.messages.len());
        for message in &outputs.messages {
            put(&mut to, message.topic.as_bytes());
            put_option(&mut to, message.key.as_deref());
            put_option(&mut to, message.payload.as_deref());
            to.put_i64(message.timestamp.map_or(NO_TIME, millis_of));
            put_length(&mut to, message.headers.len());
            for (name, value) in &message.headers {
                put(&mut to, name.as_bytes());
                put_option(&mut to, value.as_deref());
            }
        }
        outputs.kept.store(true, Ordering::Relaxed);
        Ok(Some(to.freeze()))
    }

    fn decode(&self, mut from: Bytes) -> Result<Option<Outputs>, BoxError> {
        let version = from.try_get_u8()?;
        if version != VERSION {
            return Err(format!("unknown version {version} of outputs, expected {VERSION}").into());
        }
        let topic = text(&mut from)?.into();
        let at = Coordinates { topic, partition: from.try_get_i32()?, offset: from.try_get_i64()? };
        let topic_id = option(&mut from)?;
        let topic_id = topic_id.map(|id| std::str::from_utf8(&id).map(Arc::from)).transpose()?;
        let mut messages = Vec::new();
        for _ in 0..length(&mut from)? {
            messages.push(message(&mut from)?);
        }
        if from.has_remaining() {
            return Err("trailing bytes after the outputs".into());
        }
        Ok(Some(Outputs::at(at, topic_id, messages)))
    }
}

/// Stands for no timestamp; no real timestamp is this early.
const NO_TIME: i64 = i64::MIN;

fn message(from: &mut Bytes) -> Result<Output, BoxError> {
    let mut output = Output::to(text(from)?);
    output.key = option(from)?;
    output.payload = option(from)?;
    output.timestamp = match from.try_get_i64()? {
        NO_TIME => None,
        millis => {
            Some(Timestamp::CreateTime(millis::time(millis).ok_or("timestamp out of range")?))
        }
    };
    for _ in 0..length(from)? {
        output.headers.push((text(from)?, option(from)?));
    }
    Ok(output)
}

fn millis_of(timestamp: Timestamp) -> i64 {
    let (Timestamp::CreateTime(time) | Timestamp::LogAppendTime(time)) = timestamp;
    millis::of(time)
}

/// Writes a length as LEB128: seven bits per byte, the lowest first, with the eighth bit set in all
/// bytes but the last, which is not zero unless it is the only one.
fn put_length(to: &mut BytesMut, length: usize) {
    let mut remaining = length;
    while remaining >= 0x80 {
        to.put_u8(remaining as u8 | 0x80);
        remaining >>= 7;
    }
    to.put_u8(remaining as u8);
}

fn length(from: &mut Bytes) -> Result<usize, BoxError> {
    let mut length = 0_usize;
    for shift in (0..usize::BITS).step_by(7) {
        let byte = from.try_get_u8()?;
        let bits = usize::from(byte & 0x7f);
        length |= bits << shift;
        if length >> shift != bits {
            return Err("a length is out of range".into());
        }
        if byte < 0x80 {
            // Never written, so these are not the bytes that were stored.
            let is_padded = byte == 0 && shift > 0;
            return if is_padded { Err("a length is padded".into()) } else { Ok(length) };
        }
    }
    Err("unterminated length".into())
}

fn put(to: &mut BytesMut, bytes: &[u8]) {
    put_length(to, bytes.len());
    to.put_slice(bytes);
}

fn bytes(from: &mut Bytes) -> Result<Bytes, BoxError> {
    let length = length(from)?;
    if length > from.len() {
        return Err("truncated outputs".into());
    }
    Ok(from.split_to(length))
}

fn text(from: &mut Bytes) -> Result<String, BoxError> {
    Ok(std::str::from_utf8(&bytes(from)?)?.to_owned())
}

fn put_option(to: &mut BytesMut, bytes: Option<&[u8]>) {
    to.put_u8(bytes.is_some().into());
    if let Some(bytes) = bytes {
        put(to, bytes);
    }
}

fn option(from: &mut Bytes) -> Result<Option<Bytes>, BoxError> {
    match from.try_get_u8()? {
        0 => Ok(None),
        1 => bytes(from).map(Some),
        other => Err(format!("unknown mark {other} of an optional value").into()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use proptest::prelude::*;

    use super::*;

    fn outputs() -> Outputs {
        let at = Record::builder("payments", 3, 42).topic_id("GvCdyAISRD6whW7Qxz7sbA").build();
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        let full = Output::to("invoices")
            .key("k")
            .payload(vec![0_u8; 300])
            .timestamp(Timestamp::CreateTime(time))
            .header("a", "1")
            .null_header("b");
        Outputs::of(&at).with(full).with(Output::to("tombstones").key("")).with(Output::to("x"))
    }

    fn decoded(bytes: Bytes) -> Result<Outputs, BoxError> {
        Ok(OutputsCodec.decode(bytes)?.expect("decode never returns none"))
    }

    #[test]
    fn encoded_outputs_decode_unchanged() {
        let outputs = outputs();
        let back = decoded(OutputsCodec.encode(&outputs).unwrap().unwrap()).unwrap();
        assert_eq!((&back.at, &back.topic_id), (&outputs.at, &outputs.topic_id));
        assert!(back.messages == outputs.messages);
        assert!(outputs.kept.load(Ordering::Relaxed) && !back.kept.load(Ordering::Relaxed));
    }

    #[test]
    fn truncated_or_other_version_is_a_decode_error() {
        let whole = OutputsCodec.encode(&outputs()).unwrap().unwrap();
        for end in 0..whole.len() {
            decoded(whole.slice(..end)).expect_err("truncated");
        }
        decoded([&whole[..], b"x"].concat().into()).expect_err("too long");
        let other = [&[VERSION + 1], &whole[1..]].concat();
        let error = decoded(other.into()).unwrap_err();
        assert!(error.to_string().contains("version 3"), "{error}");
    }

    #[test]
    fn bytes_that_are_never_written_are_a_decode_error() {
        let empty = b"\x02\x01p\0\0\0\x01\0\0\0\0\0\0\0\x02\0";
        let decode = |rest: &[u8]| decoded([&empty[..], rest].concat().into());
        assert!(decode(b"\0").is_ok(), "no messages");
        for (rest, expected) in [
            (&b"\x80\0"[..], "padded"),
            (b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02", "out of range"),
            (b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x81\0", "unterminated"),
            (b"\x01\x01t\x02\x01k", "unknown mark 2"),
        ] {
            let error = decode(rest).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn version_2_encoding_is_stable() {
        let at = Record::builder("p", 1, 2).topic_id("i").build();
        let outputs = Outputs::of(&at).with(Output::to("t").key("k").null_header("h"));
        let no_time = i64::MIN.to_be_bytes();
        let expected = [
            &b"\x02\x01p\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x02\x01\x01i\x01"[..],
            b"\x01t\x01\x01k\x00",
            &no_time,
            b"\x01\x01h\x00",
        ];
        assert_eq!(OutputsCodec.encode(&outputs).unwrap().unwrap(), expected.concat());
    }

    proptest! {
        #[test]
        fn decoding_garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = OutputsCodec.decode(Bytes::from([&[VERSION][..], &bytes].concat()));
        }
    }
}
