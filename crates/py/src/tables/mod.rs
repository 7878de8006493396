//! The handles of replay tables.
//!
//! | module | what it is |
//! |---|---|
//! | [`handle`] | one participant: samples, priorities, counts |
//! | [`writer`] | one stream of steps, and the items that are made of it |

pub mod handle;
pub mod writer;
