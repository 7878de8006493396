//! What the thread of a mirror and its callers share: the local copy, and the state of the connection.

use crate::error::{Error, Result};
use crate::net::client::WeightMirrorSpec;
use crate::net::client::dial::Connector;
use crate::net::server::WeightOutlet;
use crate::net::wire::stats::MirrorCounters;
use crate::sys::thread::lock;
use crate::weights::{Reader, Weights, Writer};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The local segment of one lineage.
#[derive(Debug)]
pub struct LocalCopy {
    pub writer: Writer,
    pub reader: Reader,
    pub schema: Vec<u8>,
    pub lineage: u64,
    /// The highest number of earlier lineages (M2).
    pub floor: u64,
}

impl LocalCopy {
    pub fn weights(&self) -> &Arc<Weights> {
        self.writer.weights()
    }

    pub fn version(&self) -> Result<u64> {
        self.weights().version()
    }
}

/// What the thread and the callers share.
#[derive(Debug)]
pub struct Shared {
    pub spec: WeightMirrorSpec,
    pub connector: Connector,
    pub state: Mutex<State>,
    pub counters: MirrorCounters,
    /// Those that give the copy to others (M4). Locked before `state`.
    pub outlets: Mutex<Vec<Weak<WeightOutlet>>>,
}

#[derive(Debug, Default)]
pub struct State {
    pub local: Option<Arc<LocalCopy>>,
    pub connected: bool,
    /// Why there is, or last was, no connection.
    pub last_error: Option<String>,
    pub ended: Option<Ended>,
    /// Whether the learner has shut its weights down.
    pub is_shut_down: bool,
    /// The lineage of the last number that a caller got (M2).
    pub seen: u64,
    /// Lineages that another one has replaced (M5).
    pub earlier: Vec<u64>,
}

/// Why nothing more comes.
#[derive(Debug)]
pub struct Ended {
    /// For the first caller that waits for the first connection.
    pub error: Option<Error>,
    pub why: String,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Tells the servers of the copy, as far as there are some.
    pub fn tell_outlets(&self, tell: impl Fn(&WeightOutlet)) {
        let mut outlets = lock(&self.outlets);
        outlets.retain(|outlet| outlet.upgrade().inspect(|outlet| tell(outlet)).is_some());
    }

    /// The error for a caller that comes after the end.
    pub fn error(&self, ended: &mut Ended) -> Error {
        ended.error.take().unwrap_or_else(|| self.lost(ended.why.clone()))
    }

    pub fn lost(&self, why: String) -> Error {
        Error::WeightsLost { address: self.connector.address(), why }
    }
}
