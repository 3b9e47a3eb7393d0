//! campanile
