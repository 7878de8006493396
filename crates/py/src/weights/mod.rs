//! Handles of weights: in shared memory, and mirrored from another host.

pub mod handle;
pub mod mirror;
