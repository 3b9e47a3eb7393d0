//! What the compiler says of the mistakes one makes.
//!
//! The texts are those of one version of rustc. After they have changed, look at them, and write
//! them anew with `TRYBUILD=overwrite cargo test -p campanile-idempotency --test mistakes`.

#[test]
fn every_mistake_is_told_in_the_words_of_the_user() {
    trybuild::TestCases::new().compile_fail("tests/mistakes/*.rs");
}
