//! Any bytes, as the inventory of a learner's weights and as the list of leaves of a version.
//!
//! The property tests call the same function: `crates/core/tests/prop/bytes.rs`.

#![no_main]

#[path = "../../crates/core/tests/support/probes.rs"]
mod probes;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| probes::inventory_bytes(bytes));
