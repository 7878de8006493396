//! What a server gives to clients of weights: a learner's own, or the copy of a mirror, which may be replaced by that of another
//! lineage.

use super::weight_source::{SourceEnd, WeightSource};
use crate::error::Result;
use crate::sys::thread::lock;
use crate::weights::Weights;
use std::sync::{Arc, Mutex};

/// The weights that one server gives out.
#[derive(Debug)]
pub struct WeightOutlet {
    /// The same for all lineages: the readers of a mirror have made room for these leaves.
    schema: Vec<u8>,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    source: Arc<WeightSource>,
    is_closed: bool,
}

impl WeightOutlet {
    /// Gives out weights of this machine, until they are shut down.
    pub fn new(weights: Arc<Weights>) -> Result<WeightOutlet> {
        WeightOutlet::over(WeightSource::new(weights, false)?)
    }

    /// Gives out the copy of a mirror, until that says [`end`](Self::end).
    pub(in crate::net) fn of_mirror(weights: &Arc<Weights>) -> Result<WeightOutlet> {
        WeightOutlet::over(WeightSource::new(weights.clone(), true)?)
    }

    fn over(source: WeightSource) -> Result<WeightOutlet> {
        let schema = source.inventory().schema.clone();
        Ok(WeightOutlet {
            schema,
            current: Mutex::new(Current { source: Arc::new(source), is_closed: false }),
        })
    }

    pub(super) fn schema(&self) -> &[u8] {
        &self.schema
    }

    /// What a connection that begins now sends.
    pub(super) fn source(&self) -> Arc<WeightSource> {
        lock(&self.current).source.clone()
    }

    /// Whether the weights are shut down.
    pub(super) fn is_over(&self) -> bool {
        self.source().ended() == Some(SourceEnd::ShutDown)
    }

    /// Gives out these from now on, of another lineage and with the same leaves. Connections of those before end; their clients
    /// come back.
    pub(in crate::net) fn follow(&self, weights: &Arc<Weights>) {
        let mut current = lock(&self.current);
        if current.is_closed {
            return;
        }
        // Without memory or a seat for the next source there is none: clients look elsewhere.
        let next = WeightSource::new(weights.clone(), true).ok().map(Arc::new);
        current.source.end(SourceEnd::Withdrawn);
        current.source.close();
        if let Some(next) = next {
            current.source = next;
        }
    }

    /// Tells the clients that nothing more will come from here.
    pub(in crate::net) fn end(&self, end: SourceEnd) {
        self.source().end(end);
    }

    /// Lets go of the weights. Idempotent.
    pub(super) fn close(&self) {
        let mut current = lock(&self.current);
        current.is_closed = true;
        current.source.close();
    }
}
