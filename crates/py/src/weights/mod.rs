//! Handles of weights: in shared memory, and mirrored from another host.
//!
//! | module | what it is |
//! |---|---|
//! | `handle` | `Weights`: the handle of one process on weights in shared memory |
//! | `mirror` | `WeightMirror`: a copy of weights on another host |

pub mod handle;
pub mod mirror;
