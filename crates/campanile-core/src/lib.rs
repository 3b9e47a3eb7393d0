//! campanile-core
