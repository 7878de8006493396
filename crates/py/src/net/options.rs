//! `TcpOptions`: how a worker's end of a connection behaves, the same for samples, records and weights.

use crate::convert::arguments::seconds;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use rollway_core::net::ClientTls;
use std::path::PathBuf;
use std::time::Duration;

/// `rollway.transport.tcp_options.TcpOptions`, read.
pub struct TcpOptions {
    pub token: Option<Vec<u8>>,
    pub tls: Option<ClientTls>,
    pub connect_timeout: Duration,
    pub reconnect_timeout: Duration,
    pub keepalive: Duration,
}

impl<'py> FromPyObject<'_, 'py> for TcpOptions {
    type Error = PyErr;

    fn extract(options: Borrowed<'_, 'py, PyAny>) -> PyResult<TcpOptions> {
        let duration = |name| seconds(field(&options, name)?);
        let tls: Option<(PathBuf, Option<String>)> = field(&options, "tls")?;
        Ok(TcpOptions {
            token: field(&options, "token_bytes")?,
            tls: tls.map(|(authority, server_name)| ClientTls { authority, server_name }),
            connect_timeout: duration("connect_timeout_s")?,
            reconnect_timeout: duration("reconnect_timeout_s")?,
            keepalive: duration("keepalive_s")?,
        })
    }
}

/// One field, with its name in the error when it is of another type.
fn field<'py, T>(options: &Bound<'py, PyAny>, name: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>,
{
    options.getattr(name)?.extract::<T>().map_err(|error| {
        let (py, error) = (options.py(), error.into());
        match error.is_instance_of::<PyTypeError>(py) {
            true => PyTypeError::new_err(format!("argument '{name}': {}", error.value(py))),
            false => error,
        }
    })
}
