//! Compares the database functions with `step`: for random operations on random entries, both must
//! give the same answers and store the same entries.

#[expect(dead_code, reason = "the table rejects garbage")]
#[path = "../../../../campanile-redis/tests/redis/differential/draw.rs"]
mod draw;
#[path = "../../../../campanile-redis/tests/redis/differential/fuzzer.rs"]
mod fuzzer;
mod mixed_fleet;
#[expect(dead_code, reason = "the table has no values of other types")]
#[path = "../../../../campanile-redis/tests/redis/differential/model.rs"]
mod model;
mod mutants;
mod rows;
mod runner;
#[path = "../../../../campanile-redis/tests/redis/differential/shared_keys.rs"]
mod shared_keys;
pub(crate) mod v0_1;

use self::fuzzer::Difference;
use self::runner::Runner;
use crate::support::{Database, env_number};

/// The number of operations in a normal run; set `CAMPANILE_DIFFERENTIAL_OPS` for more.
const OPERATIONS: usize = 30_000;

async fn run(database: &Database, operations: usize) -> Result<Runner, Difference> {
    let seed = env_number("CAMPANILE_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("CAMPANILE_SEED={seed}");
    let mut runner = Runner::new(database, seed).await;
    while runner.fuzzer.operations() < operations {
        runner.batch().await?;
    }
    Ok(runner)
}

#[tokio::test]
async fn functions_and_step_answer_and_store_the_same() {
    let operations = env_number("CAMPANILE_DIFFERENTIAL_OPS")
        .map_or(OPERATIONS, |operations| usize::try_from(operations).unwrap());
    match run(&Database::new().await, operations).await {
        Ok(runner) => {
            println!(
                "{} operations, 0 differences; {:?}",
                runner.fuzzer.operations(),
                runner.fuzzer.replies()
            );
            runner.fuzzer.assert_every_reply_was_seen();
        }
        Err(difference) => panic!("{difference}"),
    }
}
