//! What a consumer and the infos of its samples share: the ring, and who feeds it.

use crate::errors::to_py;
use crate::gil::GilCell;
use crate::net::endpoints::Endpoints;
use pyo3::prelude::*;
use rollway_core::Error;
use rollway_core::ring::{Consumer as Core, Ring};
use std::sync::Arc;

/// The ring as one consumer sees it.
pub struct RingView {
    core: GilCell<Option<Arc<Core>>>,
    ring: Arc<Ring>,
    /// The transports that feed the ring from elsewhere.
    endpoints: Endpoints,
}

impl RingView {
    pub fn new(core: Core) -> RingView {
        let ring = core.ring().clone();
        RingView { core: GilCell::new(Some(Arc::new(core))), ring, endpoints: Endpoints::default() }
    }

    /// Stays readable after `close`.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// How many workers there are, of `seated` producers.
    pub fn workers(&self, py: Python<'_>, seated: usize) -> usize {
        self.endpoints.workers(py, seated)
    }

    /// The consumer, unless it was closed.
    pub fn core(&self, py: Python<'_>) -> PyResult<Arc<Core>> {
        self.core.share(py).ok_or_else(|| to_py(py, Error::Closed))
    }

    /// Takes the consumer out, for whoever closes it.
    pub fn take_core(&self, py: Python<'_>) -> Option<Arc<Core>> {
        self.core.replace(py, None)
    }

    pub fn is_closed(&self, py: Python<'_>) -> bool {
        self.core.is_none(py) || self.ring.is_closed()
    }
}
