//! The layer among tower's others, in every order.

mod compiled;
mod run;
