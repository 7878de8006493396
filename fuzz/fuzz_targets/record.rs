//! Any leaves, and any bytes as a record of them.
//!
//! The property tests call the same function: `crates/core/tests/prop/bytes.rs`.

#![no_main]

#[path = "../../crates/core/tests/support/probes.rs"]
mod probes;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| probes::record_bytes(bytes));
