//! Any words in the segment of each structure: header, geometry, seats, control words, data. Opened in every role, and used.
//!
//! The property tests call the same function: `crates/core/tests/prop/bytes.rs`.

#![no_main]

#[path = "../../crates/core/tests/support/probes.rs"]
mod probes;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| probes::segment_bytes(bytes));
