//! The protocol, as `step` implements it and `Entry` stores it.
//!
//! * `table`: every operation in every situation, row by row; `notes`: what stands under the table.
//! * `bytes`: the stored form.
//! * `step_properties`: what must hold of any single step, tried on arbitrary entries and operations
//!   (`arbitrary`) and on those of simulated clients (`simulation`).
//! * `history_properties`: what must hold of a whole history of such a simulation.

mod arbitrary;
mod bytes;
mod check;
mod draft;
mod history_properties;
mod notes;
mod simulation;
mod step_properties;
mod table;
