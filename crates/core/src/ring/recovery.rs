//! What a dead process can leave in the ring, and how it is put right.
//!
//! | died after ([`Point`](crate::sys::sync::Point)) | state left | noticed by | repaired to |
//! |---|---|---|---|
//! | `RingOpened` | `open` names a buffer that is still marked Free | the next producer or consumer | Filling, by `assist` |
//! | `RunPromised` | slots that the cursor has passed and that are not claimed | the next producer, when the cursor goes round again | claimed |
//! | `SlotClaimed`, `RunPartlyClaimed`, `SlotHalfWritten`, `SlotWritten` | slots Claimed by the dead | a process that is stuck or overtakes | Free in the same batch, offered to the next producer |
//! | `SlotReady` | a complete batch, and a consumer asleep | the consumer's liveness poll | taken |
//! | `HoleCounted` | one hole too many counted, the slot still Claimed | as for a claim | Free; holes counted anew |
//! | `BatchTaken` | a buffer Taken by the dead | a stuck producer, the next consumer | Filling: offered again, whole |
//! | `BatchFreed` | a Free buffer, and producers asleep | the producers' liveness poll | opened |
//! | `BatchSealed` | a batch partly closed | the next consumer's look | closed to the end |
//! | `FirstNumbered` | a batch Taken by a dead forwarder, without numbers | the next forwarder | Filling: offered again |
//! | `BatchNumbered`, `NumbersMoved` | the same, with numbers; the next number may not have moved | the next forwarder | sent again under its numbers ([`forwarding`](super::forwarding)) |
//! | `SessionEmptied` | an entry of a dead server, for no session | the next server | free |
//! | `RunPlaced` | slots Claimed by a dead server | as for a claim | Free: the client sends the samples again |
//! | `RunLogged`, `SlotReady`, `RunCommitted` | a logged run, some of its slots Claimed | as for a claim; the next server | Ready; the next server moves the session's `next` ([`sessions`](super::sessions)) |
//! | `SessionMoved` | a client that does not know that its samples are committed | the next server | told in the Welcome |
//! | `RunFinished` | a committed run of a dead server, whose session was not moved | the next server | moved |
//! | `SeatLeaving`, `NameRemoved` | a ring that is not shut down, with or without its name | the producers' liveness poll | told of the death, at once where the name is gone |
//! | `NotifyCleared`, `NotifyMoved` | sleepers with no one to wake them | their liveness poll | awake |
//!
//! The kernel says whether a process is dead ([`crate::segment::lease`]); the liveness poll only decides *when to ask*. A
//! recoverer may itself be stopped or killed at any point: every repair is one CAS from a word that names the dead owner, so
//! it can be done twice, or by two at once, and only one succeeds.

use super::layout::{BatchNo, BufferKind, BufferWord, Place, SlotKind, SlotWord};
use super::protocol::{Damage, Protocol};
use super::sessions::LoggedRun;
use crate::segment::Owner;
use crate::segment::lease::LivenessMemo;
use crate::sys::sync::{Ordering, Point, crash_point};

/// What a recovery put right.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Slots taken back from dead producers.
    pub slots: usize,
    /// Slots that dead servers had logged, and that are committed in their place.
    pub committed: usize,
    /// Batches taken back from dead consumers.
    pub batches: usize,
}

/// Takes back everything of the owners that `is_dead` names, and counts the holes anew.
pub fn recover(ring: &Protocol<'_>, is_dead: impl Fn(Owner) -> bool) -> Result<Repairs, Damage> {
    let mut memo = LivenessMemo::of(is_dead);
    let mut repairs = Repairs::default();
    let mut holes = 0;
    let mut logs = LogMemo::default();
    for (index, line) in ring.buffers.iter().enumerate() {
        // SYNC ring.filling: Acquire here, AcqRel in `assist`. Then `open` below is not older (I4).
        let word = line.word.load(Ordering::Acquire);
        let buffer = BufferWord::unpack(word);
        if buffer.kind == BufferKind::Taken && memo.is_dead(buffer.owner) {
            let filling = BufferWord::filling(buffer.batch).pack();
            // SYNC ring.filling: Release here, Acquire in `look_for_filling`.
            let won = line.word.compare_exchange(word, filling, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            repairs.batches += won as usize;
        }
        // The open buffer may not be marked yet; its slots name the batch all the same.
        let open = ring.open();
        let batch = match buffer.kind {
            BufferKind::Filling => buffer.batch,
            _ if open.index == index => open.batch,
            _ => continue,
        };
        let passed = passed_by_cursor(ring, open, batch);
        let free = SlotWord::free(batch).pack();
        for (position, slot) in ring.slots_of(index)?.iter().enumerate() {
            // SYNC ring.claim: Acquire here, AcqRel in `claim_slot`.
            let word = slot.word.load(Ordering::Acquire);
            let claim = SlotWord::unpack(word);
            if claim.batch == batch && claim.kind == SlotKind::Claimed && memo.is_dead(claim.owner) {
                if logs.of(ring, claim.owner)?.iter().any(|log| log.has(batch, index, position)) {
                    let ready = SlotWord::new(batch, SlotKind::Ready, claim.owner).pack();
                    // SYNC ring.ready: Release here, Acquire in `progress`. The log published the payload and the stamp (S2, S5).
                    let won =
                        slot.word.compare_exchange(word, ready, Ordering::AcqRel, Ordering::Relaxed).is_ok();
                    repairs.committed += won as usize;
                    continue;
                }
                ring.control.write.holes.fetch_add(1, Ordering::Relaxed);
                crash_point(Point::HoleCounted);
                // SYNC ring.claim: Release here, Acquire in `claim_slot`.
                let won = slot.word.compare_exchange(word, free, Ordering::AcqRel, Ordering::Relaxed).is_ok();
                repairs.slots += won as usize;
                holes += won as u64;
            } else if claim.is_claimable_for(batch) && (position < passed || claim.batch == batch) {
                holes += 1; // No producer would come by, or it was given back: filled first, its row stays in order.
            }
        }
    }
    // A hint, healed: too many costs a scan each, too few would leave a batch unfinished until the next liveness poll.
    let counted = ring.control.write.holes.swap(holes, Ordering::Relaxed);
    if repairs != Repairs::default() {
        let counters = &ring.control.counters;
        counters.recovered_slots.fetch_add(repairs.slots as u64, Ordering::Relaxed);
        counters.reoffered_batches.fetch_add(repairs.batches as u64, Ordering::Relaxed);
    }
    if repairs.slots > 0 || holes > counted {
        ring.control.writable.notify_if_waiting();
        ring.control.readable.notify_if_waiting(); // The batch may be sealed, and complete without these slots.
    }
    if repairs.batches + repairs.committed > 0 {
        ring.control.readable.notify_if_waiting();
    }
    Ok(repairs)
}

/// Remembers what the last dead owner had logged: its claims lie side by side.
#[derive(Default)]
struct LogMemo(Option<(Owner, Vec<LoggedRun>)>);

impl LogMemo {
    fn of(&mut self, ring: &Protocol<'_>, dead: Owner) -> Result<&[LoggedRun], Damage> {
        if self.0.as_ref().is_none_or(|(owner, _)| *owner != dead) {
            self.0 = Some((dead, ring.logged_by(dead)?));
        }
        Ok(self.0.as_ref().map_or(&[], |(_, logs)| logs))
    }
}

/// How many slots of a batch the cursor will not pass again: all of them, unless it is the open one, which it passes twice.
fn passed_by_cursor(ring: &Protocol<'_>, open: Place, batch: BatchNo) -> usize {
    if open.batch != batch {
        return ring.batch_size;
    }
    let cursor = Place::unpack(ring.control.write.cursor.load(Ordering::Relaxed));
    if cursor.batch == batch { cursor.index.saturating_sub(ring.batch_size) } else { 0 }
}
