//! Handles of rings: samples in, batches out.

pub mod batch;
pub mod consumer;
pub mod producer;
pub mod sample;
pub mod sample_info;
pub mod slot;
