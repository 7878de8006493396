//! The kill matrices: SIGKILL and SIGSTOP at every named crash point, in processes of their own.
//!
//! `cargo test -p rollway-core --features fault --test fault ring::`

#![cfg(all(feature = "fault", not(loom)))]

#[path = "../support/mod.rs"]
mod fixture;
#[path = "../support/weights.rs"]
mod weights_fixture;

mod records;
mod replay;
mod ring;
mod tables;
mod weights;
