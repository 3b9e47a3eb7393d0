//! Fuzz target: the assignment of a group's member, which any client can write.

use bytes::BufMut;

use super::{MAX_TOPIC_LEN, decode};

/// Partitions are read from 4 bytes each, and written as the same partitions.
#[test]
fn assignment() {
    bolero::check!(name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/assignment"))
        .for_each(|bytes: &[u8]| {
            let partitions = decode(bytes);
            assert!(4 * partitions.len() <= bytes.len());
            assert!(partitions.iter().all(|(topic, _)| topic.len() <= MAX_TOPIC_LEN));
            let mut written = vec![0, 1];
            written.put_i32(i32::try_from(partitions.len()).unwrap());
            for (topic, partition) in &partitions {
                written.put_i16(i16::try_from(topic.len()).unwrap());
                written.put_slice(topic.as_bytes());
                written.put_i32(1);
                written.put_i32(*partition);
            }
            assert_eq!(decode(&written), partitions);
        });
}
