//! What both ends of a connection need: the bytes, the token, TLS, the limits and the counters. No sockets.
//!
//! | module | what it is |
//! |---|---|
//! | [`frame`] | the bytes on the wire; no I/O |
//! | [`leaf_cursor`] | a walk through the leaves of a version |
//! | [`limits`] | sizes and times on which both ends agree |
//! | [`token`], [`tls`] | authentication; encryption |
//! | [`token_file`] | the token of a server, for clients of the same user |
//! | [`stats`] | what each end counts |

pub mod frame;
pub mod leaf_cursor;
pub mod limits;
pub mod stats;
pub mod tls;
pub mod token;
pub mod token_file;
