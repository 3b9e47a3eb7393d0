//! The schema of Campanile's Postgres store as SQL: a table, and a function for each operation of
//! the protocol.
//!
//! The first file creates the schema, and each later one migrates it to the next version. Most users
//! want `campanile-postgres`, which applies the migrations and calls the functions. The SQL is a
//! separate package for operators with their own migration tools, clients in other languages, and
//! reviewers.
//!
//! ```
//! let (version, text) = campanile_sql::MIGRATIONS[0];
//! assert!(text.contains(&format!("INSERT INTO campanile.migration (version) VALUES ({version})")));
//! ```

/// The migration to each version, in order. Each must run in one transaction.
pub const MIGRATIONS: &[(i32, &str)] = &[(1, include_str!("../0001_schema.sql"))];

/// The version of the schema after all migrations.
pub const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].0;
