//! The schema of Campanile's Postgres store, as text: a table, and a function for each operation of
//! the protocol.
//!
//! Each file takes the schema from one version to the next. Most users want `campanile-postgres`,
//! which applies them and calls the functions; the texts stand alone so that operators who change a
//! schema by other means, clients in other languages and reviewers find them in one place.
//!
//! ```
//! let (version, text) = campanile_sql::MIGRATIONS[0];
//! assert!(text.contains(&format!("INSERT INTO campanile.migration (version) VALUES ({version})")));
//! ```

/// What leads to each version, in their order. Each is run in one transaction.
pub const MIGRATIONS: &[(i32, &str)] = &[
    (1, include_str!("../0001_entries.sql")),
    (2, include_str!("../0002_inbox.sql")),
    (3, include_str!("../0003_outbox.sql")),
];

/// The version of the schema that all of them lead to.
pub const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].0;
