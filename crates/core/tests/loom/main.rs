//! The shipped protocols under loom: one program, for building it takes as long as running it.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p rollway-core --profile loom --test loom`
#![cfg(loom)]

mod mortal;
mod records;
mod replay;
mod ring;
mod tables;
mod vector_env;
mod weights;
