//! campanile-bench
