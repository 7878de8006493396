//! Rollway's core: named shared memory, and a ring of samples laid over it.
//!
//! It knows sizes, offsets and atomics. It knows nothing of Python, dtypes or leaf names: a schema is an opaque
//! text here, compared and handed back. `crates/py` is the only caller besides the tests.
//!
//! | module | what it is |
//! |---|---|
//! | [`error`] | the one error type |
//! | [`sync`] | the only place that imports atomics; crash points; the [`sync::Bell`] on which everybody waits |
//! | [`segment`] | a named file in shared memory: creation, attaching, leases, collecting the stale |
//! | [`ring`] | many producers, whole batches out, recovery from any death |
//! | [`metrics`] | histograms that live in the segment |

pub mod error;
pub mod metrics;
pub mod ring;
pub mod segment;
pub mod sync;

pub use error::{Error, Result};
