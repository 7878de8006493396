//! A version in the making, in place. [`Writer::write`] fills it from memory, a mirror from a socket.
//!
//! The buffer is open (sequence 0) from the first byte to the last, so a draft that is dropped, or whose process dies,
//! leaves nothing that a reader would read (I4). A mirror publishes under the number that the version has at home.

use super::copy::{self, LeafCopy};
use super::layout::Latest;
use super::writer::{Turn, Writer, out_of_range};
use crate::error::{Error, Result};
use crate::sys::sync::Ordering;

/// Versions have 56 bits.
const MAX_VERSION: u64 = (1 << 56) - 1;

/// A version that is being written. Dropped, it was never there.
#[derive(Debug)]
pub struct Draft<'a> {
    turn: Turn<'a>,
    next: Latest,
    /// Those that are to be filled, in the order in which they were given.
    leaves: Vec<usize>,
}

impl Writer {
    /// Begins a version with a number of its own, above the latest. The caller fills the `leaves`; all others are as they were.
    pub fn draft(&self, version: u64, leaves: &[usize]) -> Result<Draft<'_>> {
        self.begin(Some(version), leaves)
    }

    /// As [`draft`](Self::draft); without a number, it gets the next one.
    pub(super) fn begin(&self, version: Option<u64>, leaves: &[usize]) -> Result<Draft<'_>> {
        let turn = self.begin_write()?;
        let (weights, protocol) = (self.weights(), self.weights().protocol());
        let geometry = weights.geometry();
        let latest = protocol.latest().map_err(|damage| weights.damaged(damage))?;
        let least = latest.map_or(1, |latest| latest.version + 1);
        let version = version.unwrap_or(least);
        if !(least..=MAX_VERSION).contains(&version) {
            let range = format!("{least} to {MAX_VERSION}");
            return Err(Error::out_of_range("version", version as usize, range));
        }
        let mut given = vec![false; geometry.leaves()];
        for &leaf in leaves {
            *given.get_mut(leaf).ok_or_else(|| out_of_range(leaf, geometry.leaves()))? = true;
        }
        if latest.is_none() && given.contains(&false) {
            return Err(Error::NothingPublished { name: weights.segment().name().to_owned() });
        }
        let buffer = self.select()?;
        let reliable = protocol.open(buffer);
        let entries = protocol.entries_of(buffer);
        let mut copies = Vec::new();
        for (leaf, (given, entry)) in given.iter().zip(entries).enumerate() {
            let kept =
                latest.filter(|_| !given).map(|latest| (latest, &protocol.entries_of(latest.buffer)[leaf]));
            let Some((latest, newest)) = kept else {
                entry.version.store(version, Ordering::Relaxed);
                continue;
            };
            let changed = newest.version.load(Ordering::Relaxed);
            if reliable && entry.version.load(Ordering::Relaxed) == changed {
                continue; // The leaf is here already (I5).
            }
            entry.version.store(changed, Ordering::Relaxed);
            entry.checksum.store(newest.checksum.load(Ordering::Relaxed), Ordering::Relaxed);
            let (from, to) = (weights.leaf(latest.buffer, leaf), weights.leaf(buffer, leaf));
            copies.push(LeafCopy { leaf, from, to, bytes: geometry.leaf_bytes[leaf] });
        }
        // SAFETY: the latest buffer is whole and not written (I2), and the selected one is ours (I1).
        unsafe { copy::copy_all(&copies, self.threads()) };
        let next = Latest { version, buffer };
        Ok(Draft { turn, next, leaves: leaves.to_vec() })
    }
}

impl Draft<'_> {
    /// Which buffer it is in.
    pub(super) fn buffer(&self) -> usize {
        self.next.buffer
    }

    /// Where the bytes of a leaf go, and how many they are. Only those that were asked for may be written, and only until the
    /// draft is published or dropped.
    pub fn place(&self, leaf: usize) -> (*mut u8, usize) {
        let weights = self.turn.writer.weights();
        (weights.leaf(self.next.buffer, leaf), weights.geometry().leaf_bytes[leaf])
    }

    /// Publishes it: every byte is in its place. `checksums`: what those of the leaves must be, in the order in which the
    /// leaves were given; the first leaf that has another is an error, and nothing is published.
    pub fn publish(self, checksums: Option<&[u64]>) -> Result<u64> {
        let writer = self.turn.writer;
        let (weights, protocol) = (writer.weights(), writer.weights().protocol());
        let copies = self.leaves.iter().map(|&leaf| {
            let (to, bytes) = self.place(leaf);
            LeafCopy { leaf, from: to, to, bytes }
        });
        if weights.has_checksums() {
            let copies: Vec<LeafCopy> = copies.collect();
            // SAFETY: the places are inside the buffer, which is ours (I1), and the caller has stopped writing.
            let sums = unsafe { copy::checksums(&copies, writer.threads()) };
            for (at, (copy, sum)) in copies.iter().zip(sums).enumerate() {
                if checksums.is_some_and(|expected| expected.get(at) != Some(&sum)) {
                    let name = weights.segment().name().to_owned();
                    return Err(Error::Checksum { name, leaf: copy.leaf, version: self.next.version });
                }
                protocol.entries_of(self.next.buffer)[copy.leaf].checksum.store(sum, Ordering::Relaxed);
            }
        }
        protocol.publish(self.next);
        Ok(self.next.version)
    }
}
