//! campanile-kafka
