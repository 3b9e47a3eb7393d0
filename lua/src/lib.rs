//! The Lua scripts.
