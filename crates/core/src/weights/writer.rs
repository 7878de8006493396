//! The writer: fills the next buffer and publishes it. It waits for nobody.

use super::copy::{self, Leg};
use super::layout::Latest;
use super::{Weights, WeightsSpec};
use crate::error::{Error, Result};
use crate::segment::{Owner, Role, Seat};
use crate::sync::Ordering;
use crate::terms::IfExists;
use std::sync::{Arc, Mutex};

/// Where the bytes of a leaf come from.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    pub leaf: usize,
    pub from: *const u8,
}

// SAFETY: the pointer is used by `Writer::write` only, whose caller answers for it.
unsafe impl Send for Source {}
// SAFETY: as above.
unsafe impl Sync for Source {}

/// The one who writes. A second one is refused as long as this one lives.
#[derive(Debug)]
pub struct Writer {
    weights: Arc<Weights>,
    seat: Seat,
    pid: u32,
    threads: usize,
    /// Threads that share the handle write one after the other.
    turn: Mutex<()>,
}

impl Writer {
    /// Opens or makes weights, and becomes their writer.
    pub fn open(spec: &WeightsSpec<'_>, if_exists: IfExists, threads: usize) -> Result<Writer> {
        if_exists.settle(|| {
            let (weights, resumed) = Weights::open_or_create(spec, if_exists)?;
            let writer = Writer::on(Arc::new(weights), threads)?;
            if !resumed {
                writer.weights.segment().publish()?;
            }
            Ok(writer)
        })
    }

    /// Becomes the writer of weights that are mapped.
    pub fn on(weights: Arc<Weights>, threads: usize) -> Result<Writer> {
        let seat = Seat::take(weights.segment().clone(), Role::Producer, |seat| weights.sweep(seat))?;
        let owner = seat.owner().expect("we have just sat down");
        let taken = weights.protocol().take_writer(owner, |other| !seat.is_alive(other));
        if let Err(other) = taken {
            let (name, pid) = (weights.segment().name().to_owned(), weights.pid_of(other));
            return Err(Error::WriterLives { name, pid });
        }
        Ok(Writer { weights, seat, pid: std::process::id(), threads, turn: Mutex::new(()) })
    }

    pub fn weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    /// The writer is the process that became it: a forked child is not.
    fn owner(&self) -> Result<Owner> {
        self.seat.owner().ok_or(Error::Forked { what: "writer of weights", owner: self.pid })
    }

    /// Publishes the next version and says which it is. Leaves that are not among the sources stay as they are.
    ///
    /// # Safety
    /// Each source has as many bytes as its leaf, mapped for reading, until this returns.
    pub unsafe fn write(&self, sources: &[Source]) -> Result<u64> {
        let me = self.owner()?;
        let _turn = self.turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (weights, protocol) = (&self.weights, self.weights.protocol());
        if protocol.writer() != Some(me) {
            return Err(
                weights.damaged(super::Damage("somebody else became its writer while this one lives"))
            );
        }
        let geometry = weights.geometry();
        let from = self.sort(sources)?;
        let latest = protocol.latest().map_err(|damage| weights.damaged(damage))?;
        if latest.is_none() && from.contains(&None) {
            return Err(Error::NothingPublished { name: weights.segment().name().to_owned() });
        }
        let grow =
            |buffer| weights.segment().grow(geometry.buffer_offset(buffer), geometry.buffer_bytes).is_ok();
        let buffer = protocol
            .select(|reader| !self.seat.is_alive(reader), grow)
            .map_err(|damage| weights.damaged(damage))?;
        let next = Latest { version: latest.map_or(0, |latest| latest.version) + 1, buffer };

        let reliable = protocol.open(buffer);
        let entries = protocol.entries_of(buffer);
        let mut legs = Vec::with_capacity(from.len());
        for (leaf, (source, entry)) in from.iter().zip(entries).enumerate() {
            let (to, bytes) = (weights.leaf(buffer, leaf), geometry.leaf_bytes[leaf]);
            match (source, latest) {
                (&Some(from), _) => {
                    entry.version.store(next.version, Ordering::Relaxed);
                    legs.push(Leg { leaf, from, to, bytes });
                }
                (None, Some(latest)) => {
                    let newest = &protocol.entries_of(latest.buffer)[leaf];
                    let version = newest.version.load(Ordering::Relaxed);
                    if reliable && entry.version.load(Ordering::Relaxed) == version {
                        continue; // The leaf is here already (I5).
                    }
                    entry.version.store(version, Ordering::Relaxed);
                    legs.push(Leg { leaf, from: weights.leaf(latest.buffer, leaf), to, bytes });
                }
                (None, None) => unreachable!("without a latest version every leaf has a source"),
            }
        }
        // SAFETY: the sources are as the caller promises, the latest buffer is whole and nobody writes it (I2), and the
        // selected one is ours (I1).
        unsafe {
            copy::copy_all(&legs, self.threads);
            if weights.has_checksums() {
                for (leg, sum) in legs.iter().zip(copy::checksums(&legs, self.threads)) {
                    entries[leg.leaf].checksum.store(sum, Ordering::Relaxed);
                }
            }
        }
        protocol.publish(next);
        Ok(next.version)
    }

    /// The source of each leaf. Of two for one leaf, the last counts.
    fn sort(&self, sources: &[Source]) -> Result<Vec<Option<*const u8>>> {
        let leaves = self.weights.geometry().leaves();
        let mut from = vec![None; leaves];
        for source in sources {
            let place = from.get_mut(source.leaf).ok_or_else(|| out_of_range(source.leaf, leaves))?;
            *place = Some(source.from);
        }
        Ok(from)
    }
}

pub(super) fn out_of_range(leaf: usize, leaves: usize) -> Error {
    Error::OutOfRange { what: "leaf", value: leaf as u64, range: format!("below {leaves}") }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(me) = self.seat.owner() {
            self.weights.protocol().leave_writer(me);
        }
    }
}
