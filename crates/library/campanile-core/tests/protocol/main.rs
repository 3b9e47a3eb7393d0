//! The protocol, as `step` implements it and `Entry` stores it.
//!
//! * `table`: every operation in every situation, row by row; `notes`: the notes below the table.
//! * `bytes`: the stored form; `expire`: when an entry may expire on behalf of an operator.
//! * `step_properties`: properties of every single step, checked on arbitrary entries and
//!   operations (`arbitrary`) and on the steps of simulated clients (`simulation`).
//! * `history_properties`: properties of the whole history of a simulation.

mod arbitrary;
mod bytes;
mod check;
mod draft;
mod expire;
mod history_properties;
mod notes;
mod simulation;
mod step_properties;
mod table;
