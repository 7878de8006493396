//! Any bytes, read as frames. `cargo install cargo-fuzz`, then `cargo +nightly fuzz run frame` (from the repository's root).
//!
//! The property tests call the same function: `crates/core/tests/net/frame.rs`.

#![no_main]

#[path = "../../crates/core/tests/support/frame_probe.rs"]
mod frame_probe;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| frame_probe::frame_bytes(bytes));
