//! The writer: fills the next buffer and publishes it. It waits for no reader.

use super::copy::{self, LeafCopy};
use super::{Weights, WeightsSpec};
use crate::error::{Error, Result};
use crate::policies::IfExists;
use crate::segment::{Owner, Role, Seat};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// The writer's handle. A second writer is refused as long as this one lives.
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
        Weights::open_or_create(spec, if_exists, |weights| Writer::attach_to(weights, threads))
    }

    /// Becomes the writer of weights that are mapped.
    pub fn attach_to(weights: Arc<Weights>, threads: usize) -> Result<Writer> {
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
    pub(super) fn owner(&self) -> Result<Owner> {
        self.seat.owner().ok_or(Error::Forked { what: "writer of weights", owner: self.pid })
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    pub(super) fn lock_writing(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn check_writer(&self, me: Owner) -> Result<()> {
        if self.weights.protocol().writer() == Some(me) {
            return Ok(());
        }
        Err(self.weights.damaged(super::Damage("another process became its writer while this one lives")))
    }

    /// The buffer for the next version.
    pub(super) fn select(&self) -> Result<usize> {
        let (weights, geometry) = (&self.weights, self.weights.geometry());
        let grow =
            |buffer| weights.segment().grow(geometry.buffer_offset(buffer), geometry.buffer_bytes).is_ok();
        let selected = weights.protocol().select(|reader| !self.seat.is_alive(reader), grow);
        selected.map_err(|damage| weights.damaged(damage))
    }

    /// Publishes the next version and says which it is. Leaves that are not among the sources stay as they are.
    ///
    /// # Safety
    /// Each source has as many bytes as its leaf, mapped for reading, until this returns.
    pub unsafe fn write(&self, sources: &[Source]) -> Result<u64> {
        let from = self.sources_by_leaf(sources)?;
        let given: Vec<usize> = (0..from.len()).filter(|&leaf| from[leaf].is_some()).collect();
        let draft = self.begin(None, &given)?;
        let copies: Vec<LeafCopy> = given
            .iter()
            .filter_map(|&leaf| {
                let (to, bytes) = draft.place(leaf);
                Some(LeafCopy { leaf, from: from[leaf]?, to, bytes })
            })
            .collect();
        // SAFETY: the sources are as the caller promises, and the places of the draft are ours (I1).
        unsafe { copy::copy_all(&copies, self.threads) };
        draft.publish(None)
    }

    /// The source of each leaf. Of two for one leaf, the last counts.
    fn sources_by_leaf(&self, sources: &[Source]) -> Result<Vec<Option<*const u8>>> {
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
    Error::out_of_range("leaf", leaf, format!("below {leaves}"))
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(me) = self.seat.owner() {
            self.weights.protocol().leave_writer(me);
        }
    }
}
