//! Handles of environments in worker processes.
//!
//! | module | what it is |
//! |---|---|
//! | `caller` | `EnvCaller`: the handle of the caller |
//! | `worker` | `EnvWorker`: the handle of a worker; makes the plain steps in a native loop, the only loop in this crate |
//! | `sink` | `EnvSink`: where the results of one step go |

pub mod caller;
pub mod sink;
pub mod worker;
