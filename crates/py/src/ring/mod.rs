//! Handles of rings: samples in, batches out.
//!
//! | module | what it is |
//! |---|---|
//! | `producer` | `Producer`: the handle of a worker |
//! | `consumer` | `Consumer`: the handle of a learner |
//! | `slot` | `Slot`: room for one sample, to be written in place |
//! | `row_writer` | `RowWriter`: writes single items into rows of arrays |
//! | `batch` | `Batch`: what the arrays of a sample keep alive |
//! | `sample` | `Sample`: a batch and its info |
//! | `sample_info` | `SampleInfo`: which producers made the samples of a batch; counters of the ring |

pub mod batch;
pub mod consumer;
pub mod producer;
pub mod row_writer;
pub mod sample;
pub mod sample_info;
pub mod slot;
