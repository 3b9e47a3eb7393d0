//! What processes of before the details send: those of version 3 of the schema.

use campanile_postgres::Schema;

/// The other functions have not changed.
pub(crate) const SCHEMA_BEFORE: Schema = Schema {
    version: 3,
    // A parameter that is not used has no type.
    acquire: "SELECT answer.* FROM (SELECT $6::bytea[]) AS no_details, \
        campanile.acquire($1, $2, $3, $4, $5, $7, $8, $9) AS answer",
    complete: "SELECT answer.* FROM (SELECT $6::bytea[]) AS no_details, \
        campanile.complete($1, $2, $3, $4, $5, $7) AS answer",
    adopt: "SELECT answer.* FROM (SELECT $8::bytea[]) AS no_details, \
        campanile.adopt($1, $2, $3, $4, $5, $6, $7, $9) AS answer",
};
