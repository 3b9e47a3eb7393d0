//! campanile-redis
