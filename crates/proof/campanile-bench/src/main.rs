//! The benchmarks, with the platform's allocator.

use std::process::ExitCode;

fn main() -> ExitCode {
    campanile_bench::main()
}
