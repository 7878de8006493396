//! Rollway's core: named shared memory, a ring of samples or lanes of records laid over it, and the network that feeds
//! them.
//!
//! It knows sizes, offsets, atomics and sockets. It knows nothing of Python, dtypes or leaf names: a schema is an opaque
//! text here, compared and handed back. `crates/py` is the only caller besides the tests.
//!
//! | module | what it is |
//! |---|---|
//! | [`error`] | the one error type |
//! | [`sync`] | the only place that imports atomics; crash points; the [`sync::Bell`] on which everybody waits |
//! | [`segment`] | a named file in shared memory: creation, attaching, leases, collecting the stale |
//! | [`block`] | named bytes with no protocol |
//! | [`ring`] | many producers, whole batches out, recovery from any death |
//! | [`records`] | records of any length, one lane for each producer, single records out |
//! | [`weights`] | whole versions of many leaves, from one writer to any number of readers |
//! | [`table`] | rows of one size, overwritten when it is full, sampled at random |
//! | [`vector_env`] | environments in worker processes, stepped by one caller |
//! | [`terms`] | what a user chooses: what to do when there is no room, or when the name is taken |
//! | [`wait`] | how long to block, and when to look around |
//! | [`signals`] | how a sleep ends for a signal that came just before it |
//! | [`sentry`] | waits in a thread, for event loops |
//! | [`metrics`] | histograms that live in the segment |
//! | [`prefetch`](mod@prefetch), [`carry`], [`share`] | hints to the processor; copies around the cache, or behind the compiler's back; by several threads |
//! | [`net`] | samples from other hosts, over TCP, straight into the ring |

pub mod block;
pub mod carry;
pub mod error;
pub mod metrics;
#[cfg(not(loom))]
pub mod net;
pub mod prefetch;
pub mod records;
pub mod ring;
pub mod schema;
pub mod segment;
#[cfg(not(loom))]
pub mod sentry;
pub mod share;
pub mod signals;
pub mod sync;
pub mod table;
pub mod terms;
pub mod vector_env;
pub mod wait;
pub mod weights;

pub use error::{Error, Result};
