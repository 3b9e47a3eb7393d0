//! Release 0.1: its schema, and the statements that its processes send. Later changes leave
//! `schema.sql` as it is.

use campanile_postgres::Schema;

pub(crate) const SCHEMA_SQL: &str = include_str!("schema.sql");

/// If a function has other parameters by now, its statement converts the arguments to those of 0.1.
pub(crate) const SCHEMA: Schema = Schema {
    version: 1,
    acquire: "SELECT (answer).*, details, steps FROM campanile.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    renew: "SELECT * FROM campanile.renew($1, $2, $3, $4, $5, $6)",
    complete: "SELECT * FROM campanile.complete($1, $2, $3, $4, $5, $6, $7)",
    adopt: "SELECT * FROM campanile.adopt($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    fail: "SELECT * FROM campanile.fail($1, $2, $3, $4, $5, $6, $7, $8)",
    release: "SELECT * FROM campanile.release($1, $2, $3, $4, $5, $6)",
    cancel: "SELECT * FROM campanile.cancel($1, $2, $3, $4)",
    give_up: "SELECT * FROM campanile.give_up($1, $2, $3, $4, $5, $6)",
    record_step: "SELECT (answer).*, steps FROM campanile.record_step($1, $2, $3, $4, $5, $6, $7)",
    redrive: "SELECT * FROM campanile.redrive($1, $2, $3, $4, $5)",
};
