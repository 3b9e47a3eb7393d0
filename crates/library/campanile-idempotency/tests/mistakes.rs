//! The compiler's messages for common mistakes.
//!
//! The messages are those of one version of rustc. When they change, review them, and regenerate
//! them with `TRYBUILD=overwrite cargo test -p campanile-idempotency --test mistakes`.

#[test]
fn compile_errors_match_expected_messages() {
    trybuild::TestCases::new().compile_fail("tests/mistakes/*.rs");
}
