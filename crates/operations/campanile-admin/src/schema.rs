//! Migrates the schema of Postgres.
//!
//! A [`MigrationPlan`] says which migrations are pending, and runs them.

use std::fmt;

use campanile_core::ConfigError;
use campanile_postgres::{PgConfig, migrate, schema_version};
use campanile_sql::{MIGRATIONS, VERSION};
use serde::Serialize;

use crate::store_config::postgres_error;
use crate::{AdminError, StoreConfig};

/// The migration to a version of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// The version.
    pub version: i32,
    /// What the version adds.
    pub summary: &'static str,
}

/// The first line of each file is `-- Version N of Campanile's schema: what it adds`.
fn summary(sql: &'static str) -> &'static str {
    let first = sql.lines().next().unwrap_or_default();
    first.split_once(": ").map_or("", |(_, summary)| summary)
}

/// What a migration found and what it will do. `Display` shows both in words.
///
/// Serializes as an object: `installed` (a version, or null), `required` and `pending` (a list of
/// versions).
#[derive(Clone, Debug)]
pub struct MigrationPlan {
    config: PgConfig,
    installed: Option<i32>,
}

impl MigrationPlan {
    /// Reads the version of the schema. Nothing is changed.
    ///
    /// # Errors
    /// Fails if the store is not Postgres, or if the server does not answer.
    pub async fn new(store: StoreConfig) -> Result<Self, AdminError> {
        let StoreConfig::Postgres(config) = store else {
            let error =
                "only Postgres has a schema: the URL of the store must begin with postgres://";
            return Err(ConfigError::new(error).into());
        };
        let installed = schema_version(config.clone()).await.map_err(postgres_error)?;
        Ok(Self { config, installed })
    }

    /// Returns the version of the schema; `None` if there is no schema.
    pub fn installed(&self) -> Option<i32> {
        self.installed
    }

    /// Checks whether the schema is of a later version than this one knows.
    pub fn is_newer(&self) -> bool {
        self.installed > Some(VERSION)
    }

    /// Returns the migrations that will run, in order.
    pub fn pending(&self) -> impl Iterator<Item = Migration> {
        let pending = MIGRATIONS.iter().filter(|(version, _)| self.installed < Some(*version));
        pending.map(|&(version, sql)| Migration { version, summary: summary(sql) })
    }

    /// Runs the pending migrations in one transaction, except those that another process has run since.
    /// Waits for another process that migrates.
    ///
    /// # Errors
    /// Fails if the server does not answer, or if a migration fails. Nothing is then changed.
    ///
    /// # Cancellation
    /// Either all migrations have run or none.
    pub async fn apply(&self) -> Result<(), AdminError> {
        migrate(self.config.clone()).await.map_err(postgres_error)
    }
}

impl fmt::Display for MigrationPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.installed {
            None => f.write_str("There is no schema.")?,
            Some(version) => write!(f, "The schema has version {version}.")?,
        }
        if self.is_newer() {
            return write!(f, " This command knows only {VERSION}: use a later one.");
        }
        let mut pending = self.pending().peekable();
        if pending.peek().is_none() {
            return f.write_str(" Nothing is pending.");
        }
        f.write_str(" These migrations are pending, and run in one transaction:")?;
        pending.try_for_each(|migration| write!(f, "\n{migration}"))?;
        f.write_str(
            "\nThere is no way back, and processes of an earlier release may not restart afterwards. If a table \
             is locked for long, as by a dump, nothing is migrated. After the migrations, grant to the user \
             of the application: GRANT USAGE ON SCHEMA campanile, and GRANT EXECUTE ON ALL FUNCTIONS IN \
             SCHEMA campanile.",
        )
    }
}

impl fmt::Display for Migration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>4}  {}", self.version, self.summary)
    }
}

impl Serialize for MigrationPlan {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields {
            installed: Option<i32>,
            required: i32,
            pending: Vec<i32>,
        }
        let pending = self.pending().map(|migration| migration.version).collect();
        Fields { installed: self.installed, required: VERSION, pending }.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_migration_has_a_summary() {
        for (version, sql) in MIGRATIONS {
            assert!(summary(sql).len() > 10, "version {version}");
        }
    }
}
