//! The protocol, as `step` implements it and `Entry` stores it.
//!
//! * `table`: every operation in every situation, row by row; `notes`: what stands under the table.
//! * `bytes`: the stored form.
//! * `rules`: what must hold of any single step, tried on entries and operations from nowhere
//!   (`wild`) and on those of a world of clients (`world`).
//! * `promises`: what must hold of a whole history of such a world.

mod bytes;
mod check;
mod draft;
mod notes;
mod promises;
mod rules;
mod table;
mod wild;
mod world;
