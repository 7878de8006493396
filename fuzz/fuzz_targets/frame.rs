//! Any bytes, read as frames. `cargo install cargo-fuzz`, then `cargo +nightly fuzz run frame` (from the repository's root).
//!
//! The property tests call the same function: `crates/core/tests/net/frame.rs`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| rollway_core::net::wire::frame::probe(bytes));
