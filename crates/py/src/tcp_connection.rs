//! What handles of samples and of records over TCP have in common: options, waiting, closing, errors.

use crate::errors::{blocking, named, to_py};
use crate::numbers::{PORTS, number};
use crate::producer::{patience, seconds};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rollway_core::Error;
use rollway_core::net::{Client, ClientTls, TcpClientSpec};
use std::path::PathBuf;

/// Copies larger than this let other threads of the interpreter run meanwhile.
pub const DETACH_BYTES: usize = 16 * 1024;

/// The keyword arguments of both, as Python gives them.
pub struct Options {
    pub max_inflight_msgs: i64,
    pub token: Option<Vec<u8>>,
    pub tls: Option<(PathBuf, Option<String>)>,
    pub producer_id: Option<i64>,
    pub connect_timeout_s: f64,
    pub reconnect_timeout_s: f64,
    pub keepalive_s: f64,
}

impl Options {
    /// Checks them.
    pub fn spec(self, py: Python<'_>, host: String, port: i64) -> PyResult<TcpClientSpec> {
        let id = |id| number(py, "producer_id", id, "0 to 4,294,967,294");
        Ok(TcpClientSpec {
            host,
            port: number(py, "port", port, PORTS)?,
            token: self.token,
            tls: self.tls.map(|(authority, server_name)| ClientTls { authority, server_name }),
            producer_id: self.producer_id.map(id).transpose()?,
            max_inflight_msgs: number(py, "max_inflight_msgs", self.max_inflight_msgs, "at least 1")?,
            connect_timeout: seconds(self.connect_timeout_s)?,
            reconnect_timeout: seconds(self.reconnect_timeout_s)?,
            keepalive: seconds(self.keepalive_s)?,
        })
    }
}

/// One connection, and how it is spoken of.
pub struct Connection<'a> {
    pub client: &'a Client,
    pub address: &'a str,
    /// "samples", or "records".
    pub cargo: &'static str,
}

impl Connection<'_> {
    /// Returns when the learner has everything that was sent.
    pub fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let patience = patience(timeout)?;
        blocking(py, || self.client.wait(patience))?.map_err(|e| self.explain(py, e, timeout))
    }

    /// Waits for what is on its way, at most `timeout` seconds, and disconnects.
    pub fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let patience = patience(timeout)?;
        match blocking(py, || self.client.close(patience))? {
            Err(Error::Forked { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(self.explain(py, error, timeout)),
        }
    }

    /// Plain numbers: what this client sent, and over how many connections.
    pub fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = PyDict::new(py);
        stats.set_item("sent", self.client.sent())?;
        stats.set_item("acknowledged", self.client.acknowledged())?;
        for (name, value) in self.client.stats().entries() {
            stats.set_item(name, value)?;
        }
        Ok(stats)
    }

    /// The exception for an error of this handle: what was awaited, and what is on its way.
    #[cold]
    pub fn explain(&self, py: Python<'_>, error: Error, timeout: Option<f64>) -> PyErr {
        let (address, cargo, waiting) = (self.address, self.cargo, self.client.unacknowledged());
        let state = if self.client.is_connected() { "connected" } else { "no connection now" };
        match error {
            Error::Timeout => {
                let seconds = timeout.unwrap_or_default();
                let message = format!(
                    "{address} did not take everything within {seconds} s: {waiting} {cargo} are not acknowledged, {state}. \
                     Wait longer, or see whether the learner still takes them"
                );
                named(py, "WaitTimeout", message)
            }
            Error::Full => {
                let message = format!(
                    "no room on the way to {address}: {waiting} {cargo} are not acknowledged, {state}"
                );
                named(py, "RingFull", message)
            }
            Error::Closed => {
                named(py, "ConnectionClosedError", format!("this client of {address} is closed"))
            }
            Error::ConnectionClosed { unacknowledged, .. } => {
                let raised = to_py(py, error);
                match raised.value(py).setattr("unacknowledged", unacknowledged) {
                    Ok(()) => raised,
                    Err(failed) => failed,
                }
            }
            other => to_py(py, other),
        }
    }
}
