//! Copies between memory of ours and GPUs, by the CUDA driver. Nothing of CUDA is needed to build this, or to run without a GPU.
//!
//! | module | what it is |
//! |---|---|
//! | `driver` | the driver, if there is one: the few of its calls that copies need |
//! | `page_lock` | memory that GPUs may read and write by themselves |
//! | `uploads` | blocks of host memory that go to a GPU one after the other |
//! | `leaf_copies` | leaves of weights, between tensors on GPUs and shared memory |

pub mod driver;
pub mod leaf_copies;
pub mod page_lock;
pub mod uploads;
