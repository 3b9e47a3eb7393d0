//! Fuzz target: stored outputs.

use bytes::Bytes;
use campanile_idempotency::ReplyCodec;

use super::OutputsCodec;

/// Bytes are outputs that encode to the same bytes, or are refused.
#[test]
fn outputs() {
    bolero::check!(name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/outputs")).for_each(
        |bytes: &[u8]| match OutputsCodec.decode(Bytes::copy_from_slice(bytes)) {
            Ok(outputs) => {
                let outputs = outputs.expect("outputs are always stored");
                assert!(outputs.messages.len() <= bytes.len());
                let encoded = OutputsCodec.encode(&outputs).expect("it was encoded");
                assert_eq!(encoded.as_deref(), Some(bytes));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        },
    );
}
