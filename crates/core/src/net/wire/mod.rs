//! What both ends of a connection need: the bytes, the secrets, the limits and the counters. No sockets.
//!
//! | module | what it is |
//! |---|---|
//! | [`frame`] | the bytes on the wire; no I/O |
//! | [`leaf_cursor`] | a walk through the leaves of a version |
//! | [`limits`] | sizes and times on which both ends agree |
//! | [`token`], [`tls`] | who may come in; who can listen |
//! | [`token_file`] | where a client finds the token of its own user's server |
//! | [`stats`] | what each end counts |

pub mod frame;
pub mod leaf_cursor;
pub mod limits;
pub mod stats;
pub mod tls;
pub mod token;
pub mod token_file;
