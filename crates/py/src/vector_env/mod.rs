//! Handles of environments in worker processes.

pub mod caller;
pub mod sink;
pub mod worker;
