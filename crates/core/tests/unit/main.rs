//! Does one call do what it says: the structures over real segments, with threads and processes.
//!
//! `cargo test -p rollway-core --test unit ring::`

#![cfg(not(loom))]

#[path = "../support/mod.rs"]
mod fixture;
#[path = "../support/weights.rs"]
mod weights_fixture;

mod inspect;
mod records;
mod replay;
mod ring;
mod schema;
mod segment;
mod sources;
mod tables;
mod vector_env;
mod weights;
