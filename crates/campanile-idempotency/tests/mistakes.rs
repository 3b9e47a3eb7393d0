//! What the compiler says of the mistakes one makes.
//!
//! The texts are those of one version of rustc. After they have changed, look at them, and write
//! them anew with `TRYBUILD=overwrite cargo test -p campanile-idempotency --test mistakes`.

#[test]
fn compile_errors_match_expected_messages() {
    trybuild::TestCases::new().compile_fail("tests/mistakes/*.rs");
}
