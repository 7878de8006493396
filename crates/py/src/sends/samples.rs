//! Sends of samples: the same methods for every handle, over a trait with what differs.

use crate::convert::arguments::{check_timeout, deadline};
use crate::convert::plan::{Expect, Plan};
use crate::convert::rows::Rows;
use crate::errors::after;
use crate::sends::{Sender, Sent, Waited, all_sent, sent_at_once};
use pyo3::prelude::*;
use rollway_core::sys::wait::Deadline;
use rollway_core::{Error, Result};

/// A handle that sends samples of one shape.
pub trait SampleSender: Sender {
    /// `send_now` releases the GIL for a sample of so many bytes; `None`: never.
    const DETACHES_FROM: Option<usize>;

    fn plan(&self) -> &Plan;

    /// Sends one sample, if there is room. False: dropped, as the policy says.
    fn send_now(&self, py: Python<'_>, rows: &Rows) -> Result<bool>;

    /// Sends one sample, which is kept, when there is room.
    fn send_waiting(&self, py: Python<'_>, rows: &Rows, deadline: Deadline) -> Waited<bool>;

    /// Sends rows, which are kept, from the row `sent` on, as many as find room at once, and counts them in `sent`, also when
    /// it fails. False: the rest was dropped, as the policy says.
    fn send_some(&self, py: Python<'_>, rows: &Rows, sent: &mut usize, deadline: Deadline) -> Waited<bool>;
}

#[inline]
pub fn send<S: SampleSender>(
    sender: &S,
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    version: u32,
    timeout: Option<f64>,
) -> PyResult<bool> {
    check_timeout(timeout)?;
    let mut rows = sample(sender, data, version)?;
    match sender.send_now(py, &rows) {
        Ok(sent) => Ok(sent),
        Err(Error::Full) if timeout != Some(0.0) => {
            rows.keep(sender.plan(), data)?;
            let sent = sender.send_waiting(py, &rows, deadline(timeout)?)?;
            sent.map_err(|error| sender.explain(py, error, timeout))
        }
        Err(error) => Err(sender.explain(py, error, timeout)),
    }
}

#[inline]
pub fn try_send<S: SampleSender>(
    sender: &S,
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    version: u32,
) -> PyResult<bool> {
    match sender.send_now(py, &sample(sender, data, version)?) {
        Ok(sent) => Ok(sent),
        Err(Error::Full) => Ok(false),
        Err(error) => Err(sender.explain(py, error, None)),
    }
}

pub fn send_many<S: SampleSender>(
    sender: &S,
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    version: u32,
    timeout: Option<f64>,
) -> PyResult<usize> {
    let sent = send_rows(sender, py, data, version, deadline(timeout)?)?;
    all_sent(sender, py, sent, timeout)
}

pub fn try_send_many<S: SampleSender>(
    sender: &S,
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    version: u32,
) -> PyResult<usize> {
    let sent = send_rows(sender, py, data, version, Deadline::Now)?;
    sent_at_once(sender, py, sent)
}

/// The arrays of one sample; kept, if it is sent without the GIL.
#[inline(always)]
fn sample<S: SampleSender>(sender: &S, data: &Bound<'_, PyAny>, version: u32) -> PyResult<Rows> {
    let mut rows = Rows::of(sender.plan(), data, Expect::Sample, version)?;
    if S::DETACHES_FROM.is_some_and(|bytes| sender.plan().sample_bytes >= bytes) {
        rows.keep(sender.plan(), data)?;
    }
    Ok(rows)
}

/// Sends stacked rows until all are sent or something ends it.
fn send_rows<S: SampleSender>(
    sender: &S,
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    version: u32,
    deadline: Deadline,
) -> PyResult<Sent> {
    let mut rows = Rows::of(sender.plan(), data, Expect::Stack, version)?;
    rows.keep(sender.plan(), data)?;
    let mut sent = 0;
    while sent < rows.count {
        let some = sender.send_some(py, &rows, &mut sent, deadline);
        match some.map_err(|raised| after(py, raised, sent))? {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => return Ok((sent, Err(error))),
        }
    }
    Ok((sent, Ok(())))
}

/// `sample_sends!(Class, send = "…", send_many = "…")`: gives a class that is a [`SampleSender`] the methods `send`, `try_send`,
/// `send_many` and `try_send_many`, with these docstrings. It expands to a block of `#[pymethods]` in which each method calls
/// the function of its name in this module.
macro_rules! sample_sends {
    ($Class:ident, send = $send:literal, send_many = $send_many:literal) => {
        #[pymethods]
        impl $Class {
            #[doc = $send]
            #[pyo3(signature = (data, *, version=0, timeout=None))]
            fn send(
                &self,
                py: Python<'_>,
                data: &Bound<'_, PyAny>,
                #[pyo3(from_py_with = $crate::convert::numbers::version)] version: u32,
                timeout: Option<f64>,
            ) -> PyResult<bool> {
                $crate::sends::samples::send(self, py, data, version, timeout)
            }

            /// Like `send`, but never waits: false when there is no room.
            #[pyo3(signature = (data, *, version=0))]
            fn try_send(
                &self,
                py: Python<'_>,
                data: &Bound<'_, PyAny>,
                #[pyo3(from_py_with = $crate::convert::numbers::version)] version: u32,
            ) -> PyResult<bool> {
                $crate::sends::samples::try_send(self, py, data, version)
            }

            #[doc = $send_many]
            #[pyo3(signature = (data, *, version=0, timeout=None))]
            fn send_many(
                &self,
                py: Python<'_>,
                data: &Bound<'_, PyAny>,
                #[pyo3(from_py_with = $crate::convert::numbers::version)] version: u32,
                timeout: Option<f64>,
            ) -> PyResult<usize> {
                $crate::sends::samples::send_many(self, py, data, version, timeout)
            }

            /// Like `send_many`, but never waits: gives how many found room, from the first on.
            #[pyo3(signature = (data, *, version=0))]
            fn try_send_many(
                &self,
                py: Python<'_>,
                data: &Bound<'_, PyAny>,
                #[pyo3(from_py_with = $crate::convert::numbers::version)] version: u32,
            ) -> PyResult<usize> {
                $crate::sends::samples::try_send_many(self, py, data, version)
            }
        }
    };
}
pub(crate) use sample_sends;
