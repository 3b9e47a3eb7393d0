//! The layer among tower's layers, in every order.

mod budgets;
mod buffers;
mod compiled;
mod permits;
mod run;
mod wrong;
