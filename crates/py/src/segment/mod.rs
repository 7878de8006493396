//! What every segment has: a place in the catalog, histograms; and blocks, which have nothing else.
//!
//! | module | what it is |
//! |---|---|
//! | `catalog` | which segments this user has; removes the stale ones |
//! | `contents` | what the kinds of segments hold, in words |
//! | `histogram` | `HistSnapshot`: a histogram, read |
//! | `sizes` | how many bytes each kind of segment takes |
//! | `block` | `Block`: named bytes in shared memory, as a buffer |

pub mod block;
pub mod catalog;
pub mod contents;
pub mod histogram;
pub mod sizes;
