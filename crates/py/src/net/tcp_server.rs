//! `TcpServer`: a TCP transport at work. `rollway.TcpTransport` starts it.

use crate::convert::arguments::seconds;
use crate::convert::numbers;
use crate::errors::{blocking, to_py};
use crate::records::consumer::RecordConsumer;
use crate::ring::consumer::Consumer;
use crate::weights::handle::Weights;
use crate::weights::mirror::WeightMirror;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rollway_core::Error;
use rollway_core::net::wire::frame::Content;
use rollway_core::net::{
    Ingress, RecordIngress, SampleIngress, ServerTls, TcpServer as Core, TcpServerSpec, WeightOutlet,
};
use rollway_core::records::Producer as RecordProducer;
use rollway_core::ring::Producer;
use rollway_core::ring::producer::ProducerSpec;
use rollway_core::segment::Role;
use std::path::PathBuf;
use std::sync::Arc;

/// Where the samples or records go.
#[derive(FromPyObject)]
enum Learner<'py> {
    Ring(PyRef<'py, Consumer>),
    Records(PyRef<'py, RecordConsumer>),
}

/// Where the weights come from.
#[derive(FromPyObject)]
enum WeightOrigin<'py> {
    Own(PyRef<'py, Weights>),
    Mirror(PyRef<'py, WeightMirror>),
}

impl WeightOrigin<'_> {
    fn outlet(&self, py: Python<'_>) -> PyResult<Arc<WeightOutlet>> {
        match self {
            WeightOrigin::Own(weights) => {
                let weights = weights.core(py)?;
                let outlet = py.detach(|| WeightOutlet::new(weights)).map_err(|e| to_py(py, e))?;
                Ok(Arc::new(outlet))
            }
            WeightOrigin::Mirror(mirror) => mirror.outlet(py),
        }
    }
}

/// A client's schema, and whether it is one of weights.
type ForeignSchema<'py> = (Bound<'py, PyBytes>, bool);

/// Listens, lets remote workers write into the ring, or a lane, and gives them weights. Never enters the interpreter.
#[pyclass(frozen, module = "rollway._core")]
pub struct TcpServer {
    core: Arc<Core>,
}

#[pymethods]
impl TcpServer {
    #[new]
    #[pyo3(signature = (consumer, host, port, *, weights, token, tls, io_threads, max_connections, frame_timeout_s, keepalive_s,
                        session_ttl_s, staging_bytes))]
    #[allow(clippy::too_many_arguments)] // Keywords, all of them, from a dataclass.
    fn start(
        py: Python<'_>,
        consumer: Option<Learner<'_>>,
        host: String,
        #[pyo3(from_py_with = numbers::port)] port: u16,
        weights: Option<WeightOrigin<'_>>,
        token: Option<Vec<u8>>,
        tls: Option<(PathBuf, PathBuf)>,
        #[pyo3(from_py_with = numbers::io_threads)] io_threads: usize,
        #[pyo3(from_py_with = numbers::max_connections)] max_connections: usize,
        frame_timeout_s: f64,
        keepalive_s: f64,
        session_ttl_s: f64,
        #[pyo3(from_py_with = numbers::staging_bytes)] staging_bytes: usize,
    ) -> PyResult<Self> {
        let spec = TcpServerSpec {
            host,
            port,
            token,
            tls: tls.map(|(certificate, key)| ServerTls { certificate, key }),
            io_threads,
            max_connections,
            frame_timeout: seconds(frame_timeout_s)?,
            keepalive: seconds(keepalive_s)?,
            session_ttl: seconds(session_ttl_s)?,
            staging_bytes,
            ..TcpServerSpec::default()
        };
        let seat = ProducerSpec { producer_id: None, on_full: None, peer_timeout: None };
        let weights = weights.map(|weights| weights.outlet(py)).transpose()?;
        let start = |ingress: Option<Ingress>| {
            if ingress.is_none() && weights.is_none() {
                let range = "a learner, weights, or both".to_owned();
                return Err(Error::OutOfRange { what: "things to serve", value: 0, range });
            }
            Core::serve_outlet(ingress, weights.clone(), spec.clone())
        };
        let (core, endpoints) = match &consumer {
            Some(Learner::Ring(consumer)) => {
                let ring = consumer.core(py)?.ring().clone();
                let ingress = || SampleIngress::new(Producer::attach_as(Role::Network, ring.clone(), seat)?);
                (blocking(py, || start(Some(ingress()?.into())))?, Some(consumer.endpoints()))
            }
            Some(Learner::Records(consumer)) => {
                let records = consumer.core(py)?.records().clone();
                let shape = consumer.shape();
                let ingress = || {
                    let producer = RecordProducer::attach_as(Role::Network, records.clone(), seat)?;
                    RecordIngress::new(producer, Some(shape.clone()))
                };
                (blocking(py, || start(Some(ingress()?.into())))?, Some(consumer.endpoints()))
            }
            None => (blocking(py, || start(None))?, None),
        };
        let core = Arc::new(core.map_err(|e| to_py(py, e))?);
        if let Some(endpoints) = endpoints {
            endpoints.add(py, &core);
        }
        Ok(TcpServer { core })
    }

    #[getter]
    fn port(&self) -> u16 {
        self.core.port()
    }

    #[getter]
    fn address(&self) -> String {
        self.core.address().to_string()
    }

    /// What clients must know, whether it was given or made.
    #[getter]
    fn token<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.core.token())
    }

    /// Every counter with its name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = PyDict::new(py);
        for (name, value) in self.core.stats().entries() {
            stats.set_item(name, value)?;
        }
        stats.set_item("sessions", self.core.sessions())?;
        Ok(stats)
    }

    /// The last client that was not let in: its name, the reason, and how many seconds ago; where its schema was the reason, also that, and
    /// whether it is one of weights.
    fn last_refusal<'py>(
        &self,
        py: Python<'py>,
    ) -> Option<(String, String, f64, Option<ForeignSchema<'py>>)> {
        let refused = self.core.last_refusal()?;
        let schema =
            refused.schema.map(|(content, schema)| (PyBytes::new(py, &schema), content == Content::Weights));
        Some((refused.peer, refused.text, refused.at.elapsed().as_secs_f64(), schema))
    }

    /// Says goodbye to the clients and gives back their slots.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.core.stop());
    }
}
