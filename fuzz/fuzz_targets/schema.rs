//! Any bytes, as the schema text of samples, rows and weights: what is understood has the sizes that it says.
//!
//! The property tests are in `crates/core/tests/unit/schema.rs`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rollway_core::schema::{self, Leaf};

fn check(leaf: &Leaf) {
    let bytes = leaf.dims.iter().try_fold(leaf.item_bytes, |bytes, &dim| bytes.checked_mul(dim));
    assert_eq!(bytes, Some(leaf.bytes), "{leaf:?}");
    assert!(leaf.dims.len() <= schema::MAX_DIMENSIONS && leaf.path.len() <= schema::MAX_NAME_BYTES);
}

fuzz_target!(|text: &[u8]| {
    let leaves = schema::leaves(text);
    leaves.iter().flatten().for_each(check);
    if let Ok(columns) = schema::columns(text) {
        assert_eq!(Ok(columns), leaves, "rows are read as samples are");
    }
    if let Ok(weights) = schema::weights(text) {
        weights.leaves.iter().for_each(check);
        assert!(weights.leaves.is_sorted_by(|one, next| one.path < next.path));
        let sizes: Vec<usize> = weights.leaves.iter().map(|leaf| leaf.bytes).collect();
        assert!(weights.fits(&sizes));
    }
});
