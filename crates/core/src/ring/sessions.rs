//! Sessions of remote clients in a ring ([`crate::segment::sessions`]): a run is adjacent slots of one batch.
//!
//! A log names the batch of its run (S4). A slot that is Claimed in this batch, in the run of the log, belongs to the log: its owner
//! claimed it before it logged it, and a slot that was committed is not claimed again in the same batch.

use super::layout::{BatchNo, Place, SlotKind, SlotWord};
use super::producer::{Origin, Producer};
use super::protocol::{Claim, Damage, Protocol};
use crate::error::Result;
use crate::segment::sessions::{HeldSession, Log, SessionEntry, SessionStore, SessionTable, logs_of};
use crate::segment::{Owner, Seat};
use crate::sys::sync::Ordering;
use std::ops::Range;

/// A run of slots that was logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LoggedRun {
    batch: BatchNo,
    buffer: usize,
    slots: Range<usize>,
}

impl LoggedRun {
    /// Whether the slot, which is Claimed, belongs to it (S4).
    pub(super) fn has(&self, batch: BatchNo, buffer: usize, slot: usize) -> bool {
        (self.batch, self.buffer) == (batch, buffer) && self.slots.contains(&slot)
    }
}

impl Protocol<'_> {
    /// Publishes a run as the next samples of a session. The payload and the stamps are written, and the entry is ours.
    pub fn commit_logged(&self, entry: &SessionEntry, claim: Claim) {
        let target = entry.next().wrapping_add(claim.len() as u64);
        let place = Place { batch: claim.batch, index: claim.buffer }.pack();
        let run = (claim.slot as u64) << 32 | claim.len() as u64;
        entry.commit_logged(place, run, target, || self.commit(claim));
    }

    /// The slots that a log names: its first one (32), and how many (32).
    fn logged_run(&self, log: Log) -> Result<LoggedRun, Damage> {
        let place = Place::unpack(log.place);
        let (slot, len) = ((log.run >> 32) as usize, (log.run & u64::from(u32::MAX)) as usize);
        let slots = slot..slot + len;
        if place.index >= self.buffers.len() || slots.end > self.batch_size || log.count != len as u64 {
            return Err(Damage("a session has logged slots that do not exist"));
        }
        Ok(LoggedRun { batch: place.batch, buffer: place.index, slots })
    }

    /// What `owner`, which is dead, had logged and may not have committed.
    pub(super) fn logged_by(&self, owner: Owner) -> Result<Vec<LoggedRun>, Damage> {
        logs_of(self.sessions, owner).map(|log| self.logged_run(log)).collect()
    }
}

impl SessionTable for Protocol<'_> {
    fn entries(&self) -> &[SessionEntry] {
        self.sessions
    }

    fn finish(&self, log: Log, holder: Owner) -> Result<(), Damage> {
        let log = self.logged_run(log)?;
        let claimed = SlotWord::new(log.batch, SlotKind::Claimed, holder).pack();
        let ready = SlotWord::new(log.batch, SlotKind::Ready, holder).pack();
        for slot in &self.slots_of(log.buffer)?[log.slots] {
            // SYNC ring.ready: Release here, Acquire in `progress`. The log published the payload and the stamp (S2). It fails
            // when the dead holder or another process was faster.
            let _ = slot.word.compare_exchange(claimed, ready, Ordering::AcqRel, Ordering::Relaxed);
        }
        self.control.readable.notify_if_waiting();
        Ok(())
    }
}

impl SessionTable for Producer {
    fn entries(&self) -> &[SessionEntry] {
        self.ring().protocol().sessions
    }

    fn finish(&self, log: Log, holder: Owner) -> Result<(), Damage> {
        self.ring().protocol().finish(log, holder)
    }
}

impl SessionStore for Producer {
    fn owner(&self) -> Result<Owner> {
        Producer::owner(self)
    }

    fn seat(&self) -> &Seat {
        Producer::seat(self)
    }
}

impl Producer {
    /// Stamps and publishes a claim as the next samples of a session of this ring. Every payload byte is written.
    pub fn commit_each_logged(
        &self,
        session: &HeldSession,
        claim: Claim,
        origins: impl Iterator<Item = Origin>,
    ) {
        self.stamp(&claim, origins);
        self.ring().protocol().commit_logged(session.entry(), claim);
    }
}
