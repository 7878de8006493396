//! What the kinds of segments hold, in words.

use rollway_core::segment::block;
use rollway_core::{records, replay, ring, tables, vector_env, weights};

/// What a segment holds, for people: in a word, and with whose it is.
pub fn contents(kind: u32) -> (&'static str, &'static str) {
    match kind {
        ring::layout::KIND => ("ring", "the samples of a Server (ShmClient)"),
        records::layout::KIND => ("records", "the records of a RecordServer (ShmRecordClient)"),
        weights::layout::KIND => ("weights", "weights (SharedWeightSync)"),
        replay::layout::KIND => ("replay", "rows to sample (ReplayBuffer)"),
        tables::layout::KIND => ("tables", "replay tables (ReplayTables)"),
        vector_env::layout::KIND => ("vector env", "a vector environment"),
        block::KIND => ("block", "a block of plain memory"),
        _ => ("unknown", "something that this version does not know"),
    }
}
