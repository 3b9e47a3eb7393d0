-- The service's table. Create it as the owner of the schema, before the first deployment.
CREATE TABLE booking (
    payment_id text PRIMARY KEY,
    account    text NOT NULL,
    cents      bigint NOT NULL,
    -- the fencing token of the lock under which the row was written
    token      bigint NOT NULL
);
