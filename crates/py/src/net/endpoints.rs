//! The transports that feed one learner.

use crate::gil::GilCell;
use pyo3::prelude::*;
use rollway_core::net::{ServerStats, TcpServer as Core};
use std::sync::{Arc, Weak};

/// The transports of one learner, as far as they are at work.
pub struct Endpoints(GilCell<Vec<Weak<Core>>>);

impl Default for Endpoints {
    fn default() -> Endpoints {
        Endpoints(GilCell::new(Vec::new()))
    }
}

impl Endpoints {
    pub fn add(&self, py: Python<'_>, endpoint: &Arc<Core>) {
        let mut endpoints = self.0.replace(py, Vec::new());
        endpoints.push(Arc::downgrade(endpoint));
        self.0.replace(py, endpoints);
    }

    /// How many workers there are, of `seated` producers: a transport sits on one seat for all its connections.
    pub fn workers(&self, py: Python<'_>, seated: usize) -> usize {
        // SAFETY: this counts references.
        let mut endpoints: Vec<_> =
            unsafe { self.0.with(py, |endpoints| endpoints.iter().filter_map(Weak::upgrade).collect()) };
        endpoints.retain(|endpoint| !endpoint.is_stopped());
        let workers = |stats: ServerStats| stats.connections.saturating_sub(stats.weight_clients) as usize;
        let connections: usize = endpoints.iter().map(|endpoint| workers(endpoint.stats())).sum();
        seated.saturating_sub(endpoints.len()) + connections
    }
}
