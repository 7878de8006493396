//! The learner's weights, for the connections of a TCP server.
//!
//! A weight source is one reader of the weights. Connections that send the same version share one pin. Its thread, the *version
//! watcher*, sleeps until the weights have a new version, and tells the event loops. `weight_frames` sends.

use crate::error::Result;
use crate::net::wire::frame::{Inventory, MAX_LEAVES, MAX_WEIGHTS_SCHEMA_BYTES};
use crate::net::wire::limits::check_at_most;
use crate::segment::Role;
use crate::sys::sync::{AtomicBool, Ordering};
use crate::sys::thread::{OwnedThread, lock};
use crate::sys::wait::LivenessPoll;
use crate::weights::{HeldVersion, Reader, Weights};
use std::sync::{Arc, Mutex, Weak};
use tokio::sync::watch;

/// What the version watcher knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LatestVersion {
    /// The latest; 0 before the first.
    pub version: u64,
    /// Nothing more will come.
    pub end: Option<SourceEnd>,
}

/// Why nothing more will come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceEnd {
    /// The weights are shut down, or damaged. Clients get the last version.
    ShutDown,
    /// A mirror has other weights now, or has lost its learner. Clients may find more elsewhere, or here.
    Withdrawn,
}

/// One reader of the weights, and the version watcher.
#[derive(Debug)]
pub struct WeightSource {
    weights: Arc<Weights>,
    /// `None` when it is closed.
    reader: Mutex<Option<Arc<Reader>>>,
    /// The version that was held last, as long as a connection sends it.
    held: Mutex<Weak<HeldVersion>>,
    inventory: Inventory,
    is_mirror: bool,
    latest: watch::Sender<LatestVersion>,
    stop: Arc<AtomicBool>,
    watcher: OwnedThread,
}

impl WeightSource {
    /// Attaches a reader to the weights, and starts the version watcher. `is_mirror`: their mirror says when they end
    /// ([`end`](Self::end)), because it also shuts down weights that it replaces.
    pub fn new(weights: Arc<Weights>, is_mirror: bool) -> Result<WeightSource> {
        let geometry = weights.geometry();
        let schema = weights.segment().schema();
        check_at_most("leaves", geometry.leaves(), MAX_LEAVES)?;
        check_at_most("schema bytes", schema.len(), MAX_WEIGHTS_SCHEMA_BYTES)?;
        let inventory = Inventory {
            lineage: weights.lineage(),
            checksums: weights.has_checksums(),
            is_mirror: weights.is_mirror(),
            leaf_bytes: geometry.leaf_bytes.iter().map(|&bytes| bytes as u64).collect(),
            schema,
        };
        let reader = Arc::new(Reader::attach_as(Role::NetworkReader, weights.clone(), 1)?);
        let (latest, stop) =
            (watch::Sender::new(look(&weights, is_mirror)), Arc::new(AtomicBool::new(false)));
        let watcher = OwnedThread::spawn("rollway-version", {
            let (weights, latest, stop) = (weights.clone(), latest.clone(), stop.clone());
            move || watch_versions(&weights, is_mirror, &latest, &stop)
        })?;
        Ok(WeightSource {
            weights,
            reader: Mutex::new(Some(reader)),
            held: Mutex::default(),
            inventory,
            is_mirror,
            latest,
            stop,
            watcher,
        })
    }

    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// Tells of new versions.
    pub fn latest(&self) -> watch::Receiver<LatestVersion> {
        self.latest.subscribe()
    }

    /// Tells the connections, and those that come, that nothing more will come from here.
    pub fn end(&self, end: SourceEnd) {
        // The watcher may not have told of the last version yet, which clients still get.
        let now = look(&self.weights, self.is_mirror);
        self.latest.send_modify(|latest| {
            *latest = LatestVersion { version: now.version, end: latest.end.or(Some(end)) };
        });
    }

    /// Why nothing more will come.
    pub fn ended(&self) -> Option<SourceEnd> {
        let told = self.latest.borrow().end;
        told.or_else(|| look(&self.weights, self.is_mirror).end)
    }

    /// Whether a client may have a newer version than there is here: from another server of the same lineage.
    pub fn may_lag(&self) -> bool {
        self.inventory.is_mirror
    }

    /// The latest version, as of now; 0 before the first.
    pub fn version(&self) -> Result<u64> {
        self.weights.version()
    }

    /// Holds the latest version; connections that send it share the hold. `None`: there is none, or the source is closed.
    pub fn hold(&self) -> Result<Option<Arc<HeldVersion>>> {
        let mut held = lock(&self.held);
        let latest = self.weights.version()?;
        if let Some(hold) = held.upgrade().filter(|hold| hold.version() == latest) {
            return Ok(Some(hold));
        }
        let Some(reader) = lock(&self.reader).clone() else { return Ok(None) };
        let hold = HeldVersion::latest(&reader)?.map(Arc::new);
        *held = hold.as_ref().map_or_else(Weak::new, Arc::downgrade);
        Ok(hold)
    }

    /// Ends the version watcher, and detaches the reader. The last process to detach removes the name. Idempotent.
    pub fn close(&self) {
        if !self.watcher.is_here() {
            return; // A forked child: the version watcher is not in it.
        }
        self.stop.store(true, Ordering::Relaxed);
        self.weights.protocol().control.published.notify();
        self.watcher.join();
        if lock(&self.reader).take().is_some() {
            // The next process that opens the name removes what stays behind.
            let _ = Weights::collect(self.weights.segment().name());
        }
    }
}

impl Drop for WeightSource {
    fn drop(&mut self) {
        self.close();
    }
}

fn look(weights: &Weights, is_mirror: bool) -> LatestVersion {
    let end = (!is_mirror && weights.is_closed()).then_some(SourceEnd::ShutDown);
    match weights.version() {
        Ok(version) => LatestVersion { version, end },
        Err(_) => LatestVersion { version: 0, end: Some(SourceEnd::ShutDown) }, // The next hold says why.
    }
}

/// The work of the version watcher. It polls, too, because a writer may die after it published and before it notified.
fn watch_versions(
    weights: &Weights,
    is_mirror: bool,
    latest: &watch::Sender<LatestVersion>,
    stop: &AtomicBool,
) {
    let event = &weights.protocol().control.published;
    let mut poll = LivenessPoll::start();
    loop {
        let ticket = event.announce();
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let now = look(weights, is_mirror);
        latest.send_if_modified(|told| {
            let now = LatestVersion { end: told.end.or(now.end), ..now };
            std::mem::replace(told, now) != now
        });
        event.wait(ticket, poll.pause());
    }
}
