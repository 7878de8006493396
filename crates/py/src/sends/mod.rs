//! What the handles that send have in common: samples or records, in shared memory or over TCP.
//!
//! A handle implements the trait for what it sends, [`samples::SampleSender`] or [`records::RecordSender`]; the generic
//! functions beside the trait are its methods. PyO3 makes no methods of generic functions, so a macro beside them gives
//! each class its own, which only call them: no dynamic dispatch, and no Python frame.
//!
//! | module | what it is |
//! |---|---|
//! | `samples` | `send` and its kin of samples, for `Producer` and `TcpSender` |
//! | `records` | `send` and its kin of records, for `RecordProducer` and `TcpRecordSender` |
//! | `shm` | attaching, closing and errors, for `Producer` and `RecordProducer` |
//! | `slot` | how `Slot` and `RecordSlot` are left |
//!
//! `net::connection` has what `TcpSender` and `TcpRecordSender` have in common.

pub mod records;
pub mod samples;
pub mod shm;
pub mod slot;

use crate::errors::after;
use pyo3::prelude::*;
use rollway_core::Error;

/// A handle that sends.
pub trait Sender {
    /// The exception for an error of this handle: what was awaited, and why it did not come.
    fn explain(&self, py: Python<'_>, error: Error, timeout: Option<f64>) -> PyErr;
}

/// What a call that may wait gives. The outer error is what a signal handler raised.
pub type Waited<T> = PyResult<rollway_core::Result<T>>;

/// How many were sent of several, and what ended it.
pub type Sent = (usize, rollway_core::Result<()>);

/// What `send_many` returns, or raises.
fn all_sent(
    sender: &impl Sender,
    py: Python<'_>,
    (sent, ended): Sent,
    timeout: Option<f64>,
) -> PyResult<usize> {
    match ended {
        Ok(()) => Ok(sent),
        Err(error) => Err(after(py, sender.explain(py, error, timeout), sent)),
    }
}

/// What `try_send_many` returns, or raises: no room is no error.
fn sent_at_once(sender: &impl Sender, py: Python<'_>, sent: Sent) -> PyResult<usize> {
    match sent {
        (sent, Err(Error::Full)) => Ok(sent),
        sent => all_sent(sender, py, sent, None),
    }
}
