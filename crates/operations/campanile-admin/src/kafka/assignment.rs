//! The partitions of a group's member, in the encoding of Kafka's consumers.

use bytes::Buf;

use super::members::Partition;

/// The maximum length of a topic's name. Each partition gets a copy of it, and takes only 4 bytes here.
const MAX_TOPIC_LEN: usize = 249;

/// Decodes a `ConsumerProtocolAssignment`. What cannot be decoded is left out.
pub(super) fn decode(bytes: &[u8]) -> Vec<Partition> {
    let mut partitions = Vec::new();
    // Ends at the first field that is not whole.
    let _ = read(bytes, &mut partitions);
    partitions
}

fn read(mut bytes: &[u8], partitions: &mut Vec<Partition>) -> Option<()> {
    bytes.try_get_u16().ok()?; // the version; later ones only append fields
    for _ in 0..bytes.try_get_i32().ok()? {
        let len = usize::try_from(bytes.try_get_i16().ok()?).ok()?;
        if len > MAX_TOPIC_LEN {
            return None;
        }
        let topic = String::from_utf8(bytes.split_off(..len)?.to_vec()).ok()?;
        for _ in 0..bytes.try_get_i32().ok()? {
            partitions.push((topic.clone(), bytes.try_get_i32().ok()?));
        }
    }
    Some(())
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_of_each_topic_are_decoded() {
        let bytes = b"\0\x01\0\0\0\x02\0\x01a\0\0\0\x02\0\0\0\x00\0\0\0\x03\0\x02bc\0\0\0\x01\0\0\0\x07\0\0\0\0";
        let expected = [("a".to_owned(), 0), ("a".to_owned(), 3), ("bc".to_owned(), 7)];
        assert_eq!(decode(bytes), expected);
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).len() <= 3);
        }
        assert_eq!(decode(b"\0\0\x7f\xff\xff\xff\xff\xff"), []);
    }

    #[test]
    fn name_that_is_too_long_is_left_out() {
        let encoded = |len: u16| {
            let name = vec![b'a'; len.into()];
            [&b"\0\x01\0\0\0\x01"[..], &len.to_be_bytes(), &name, b"\0\0\0\x01\0\0\0\x07"].concat()
        };
        assert_eq!(decode(&encoded(249)), [("a".repeat(249), 7)]);
        assert_eq!(decode(&encoded(250)), []);
    }
}
