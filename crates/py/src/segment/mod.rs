//! What every segment has: a place in the catalog, histograms; and blocks, which have nothing else.

pub mod block;
pub mod catalog;
pub mod contents;
pub mod histogram;
pub mod sizes;
