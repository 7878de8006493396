//! Rollway's core: named shared memory, a ring of samples or lanes of records laid over it, and the network that feeds
//! them.
//!
//! It knows sizes, offsets, atomics and sockets. It knows nothing of Python, dtypes or leaf names: a schema is an opaque
//! text here, compared and handed back. `crates/py` is the only caller besides the tests.
//!
//! | module | what it is |
//! |---|---|
//! | [`error`] | the one error type |
//! | [`schema`] | the one parser of schema text |
//! | [`policies`] | what a user chooses: what to do when there is no room, or when the name is taken |
//! | [`sys`] | atomics, waiting, time and copies: the only import of atomics |
//! | [`segment`] | a named file in shared memory: creation, attaching, leases, collecting the stale; histograms and blocks in it |
//! | [`ring`] | many producers, whole batches out, recovery from any death |
//! | [`records`] | records of any length, one lane for each producer, single records out |
//! | [`weights`] | whole versions of many leaves, from one writer to any number of readers |
//! | [`replay`] | rows of one size, overwritten when it is full, sampled at random |
//! | [`tables`] | replay tables: steps once, items as windows of them, selectors and limiters |
//! | [`vector_env`] | environments in worker processes, stepped by one caller |
//! | [`inspect`] | a look at a segment from outside, read-only |
//! | [`net`] | samples from other hosts, over TCP, straight into the ring |

pub mod error;
#[cfg(not(loom))]
pub mod inspect;
#[cfg(not(loom))]
pub mod net;
pub mod policies;
pub mod records;
pub mod replay;
pub mod ring;
pub mod schema;
pub mod segment;
pub mod sys;
pub mod tables;
pub mod vector_env;
pub mod weights;

pub use error::{Error, Result};
