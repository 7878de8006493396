//! What the thread of a mirror and its callers share: the settings, the local copy, and the state of the connection.

use crate::error::{Error, Result};
use crate::net::client::dial::Connector;
use crate::net::wire::stats::MirrorCounters;
use crate::net::wire::tls::ClientTls;
use crate::sys::thread::lock;
use crate::weights::{Reader, Weights, Writer};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Where the learner is, and what the copy should be. `..WeightMirrorSpec::default()` fills in the rest.
#[derive(Debug, Clone)]
pub struct WeightMirrorSpec {
    pub host: String,
    pub port: u16,
    pub token: Option<Vec<u8>>,
    pub tls: Option<ClientTls>,
    /// Of the local segment, for others on this host to attach to. `None`: in this process only.
    pub name: Option<String>,
    /// The schema text of the weights that the callers make room for: other leaves are refused. `None`: any weights.
    pub wanted: Option<Vec<u8>>,
    /// How much memory the copy may take at first; `None`: half of what is there.
    pub max_bytes: Option<u64>,
    pub max_buffers: usize,
    pub max_peers: usize,
    /// Threads that copy unchanged leaves into a new version, and leaves to readers.
    pub threads: usize,
    /// How long to try for the first connection; the learner may start later than the mirror.
    pub connect_timeout: Duration,
    /// How long to try again after a connection was lost.
    pub reconnect_timeout: Duration,
    pub keepalive: Duration,
}

impl Default for WeightMirrorSpec {
    fn default() -> WeightMirrorSpec {
        WeightMirrorSpec {
            host: "127.0.0.1".to_owned(),
            port: 0,
            token: None,
            tls: None,
            name: None,
            wanted: None,
            max_bytes: None,
            max_buffers: 8,
            max_peers: 67,
            threads: 1,
            connect_timeout: Duration::from_secs(10),
            reconnect_timeout: Duration::from_secs(60),
            keepalive: Duration::from_secs(5),
        }
    }
}

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
    pub fn weights(&self) -> &Weights {
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
}

#[derive(Debug, Default)]
pub struct State {
    pub local: Option<Arc<LocalCopy>>,
    pub connected: bool,
    /// Why there is, or last was, no connection.
    pub last_error: Option<String>,
    pub ended: Option<Ended>,
    /// The lineage of the last number that a caller got (M2).
    pub seen: u64,
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

    /// The error for a caller that comes after the end.
    pub fn error(&self, ended: &mut Ended) -> Error {
        ended.error.take().unwrap_or_else(|| self.lost(ended.why.clone()))
    }

    pub fn lost(&self, why: String) -> Error {
        Error::WeightsLost { address: self.connector.address(), why }
    }
}
