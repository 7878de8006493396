//! The latest version, held in place: for the network, which sends it without a copy of its own.
//!
//! A hold is a pin (I3) with a longer life than a copy's. The writer does not wait for it. If there are more holds than pins,
//! or the writer has no other buffer left, the bytes may change under it; [`HeldVersion::is_whole`] says whether they did.

use super::layout::Latest;
use super::reader::Reader;
use crate::error::Result;
use crate::sys::sync::{AtomicU64, Ordering};
use std::sync::Arc;

/// A version that stays, unless the writer needs its place.
#[derive(Debug)]
pub struct HeldVersion {
    reader: Arc<Reader>,
    latest: Latest,
    pin: Option<(usize, usize)>,
}

/// A leaf of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangedLeaf {
    pub leaf: usize,
    /// 0 without checksums.
    pub checksum: u64,
}

impl HeldVersion {
    /// Holds the latest version. `None`: nothing was published yet.
    pub fn latest(reader: &Arc<Reader>) -> Result<Option<HeldVersion>> {
        let me = reader.owner()?;
        let (weights, protocol) = (reader.weights(), reader.weights().protocol());
        let pin = reader.lend_pin().map(|lent| (me.seat(), lent.keep()));
        let without = AtomicU64::default();
        let word = pin.map_or(&without, |(seat, index)| &protocol.pins[seat].pins[index]);
        let held = protocol.pin(word, me).map_err(|damage| weights.damaged(damage));
        match held {
            Ok(Some(latest)) => {
                reader.populate(latest.buffer);
                Ok(Some(HeldVersion { reader: reader.clone(), latest, pin }))
            }
            other => {
                if let Some((_, index)) = pin {
                    reader.return_pin(index);
                }
                other.map(|_| None)
            }
        }
    }

    pub fn version(&self) -> u64 {
        self.latest.version
    }

    /// The leaves that changed after version `since` (0: all of them), in order.
    pub fn changed_since(&self, since: u64) -> Vec<ChangedLeaf> {
        let entries = self.reader.weights().protocol().entries_of(self.latest.buffer);
        let changed =
            entries.iter().enumerate().filter(|(_, entry)| entry.version.load(Ordering::Relaxed) > since);
        changed
            .map(|(leaf, entry)| ChangedLeaf { leaf, checksum: entry.checksum.load(Ordering::Relaxed) })
            .collect()
    }

    /// Where a leaf lies, and how many bytes it has. They may change while they are read.
    pub fn leaf(&self, leaf: usize) -> (*const u8, usize) {
        let weights = self.reader.weights();
        (weights.leaf(self.latest.buffer, leaf), weights.geometry().leaf_bytes[leaf])
    }

    /// As [`is_whole`](Self::is_whole), for callers that read again when it is not: false only when a newer version is there
    /// to be read. A buffer that changed while it was the latest one is damage.
    pub fn check_whole(&self) -> Result<bool> {
        let weights = self.reader.weights();
        let overtaken = || weights.protocol().check_overtaken(self.latest).map(|()| false);
        if self.is_whole() { Ok(true) } else { overtaken().map_err(|damage| weights.damaged(damage)) }
    }

    /// Whether everything that was read so far is of this version.
    pub fn is_whole(&self) -> bool {
        self.reader.weights().protocol().is_whole(self.latest)
    }
}

impl Drop for HeldVersion {
    fn drop(&mut self) {
        if let Some((seat, index)) = self.pin {
            let protocol = self.reader.weights().protocol();
            protocol.unpin(&protocol.pins[seat].pins[index]);
            self.reader.return_pin(index);
        }
    }
}
