//! campanile-test
