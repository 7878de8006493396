//! Any sequence of calls against a plain model, and any bytes in place of valid ones.
//!
//! `cargo test -p rollway-core --test prop ring::`

#![cfg(not(loom))]

#[path = "../support/probes.rs"]
mod probes;
#[path = "../support/weights.rs"]
mod weights_fixture;

mod bytes;
mod groups;
mod records;
mod ring;
mod weights;
