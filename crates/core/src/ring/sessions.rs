//! Sessions of remote clients: what each of them has delivered. It lies in the segment, so the next learner knows it, too.
//!
//! A server gives the samples of a session to the ring in the order of their numbers. It *logs* each run of slots before it
//! commits it. A logged run is whole, so any process can finish the commit of a server that died.
//!
//! ```text
//! payload, stamps ──▶ place, run ──▶ target ──▶ slots Ready ──▶ next moves to target
//! died here  the run is given back ┘     └─ logged: its slots become Ready, and next moves to target
//! ```
//!
//! S1  Only the holder of an entry writes to it. It becomes the holder by one CAS: from none, or from a dead holder. Before that
//!     it makes the slots of the dead holder's log Ready; after it, it moves `next` to `target`.
//! S2  `target` is stored after the payload and the stamps of a run, `place` and `run` (release). From then on the run is never given
//!     back.
//! S3  `next` moves to `target` when all slots of the run are Ready. So if `target` is not above `next`, everything below `next` is
//!     committed and nothing else. Otherwise all but slots of the logged run is settled, and the log says which these are.
//! S4  A log names its batch. A slot that is Claimed in this batch, in the run of the log, belongs to the log: its owner claimed it
//!     before it logged it, and a slot that was committed is not claimed again in the same batch. So a log that is over
//!     applies to no later claim.
//! S5  Recovery gives back a slot of a dead owner after it has looked at the logs of all entries that this owner holds. An entry
//!     of a dead holder changes hands after the slots of its log are Ready. Who reads a log reads the holder again afterwards.
//!     So a log is read whole, or it is over.
//! S6  An entry without a holder may be given to another session: its client is then unknown, as it is to a new ring. An entry
//!     whose holder lives is never taken from it.

use super::layout::{BatchNo, Place, SessionEntry, SlotKind, SlotWord};
use super::producer::{Origin, Producer};
use super::protocol::{Claim, Damage, Protocol};
use crate::error::Result;
use crate::segment::Owner;
use crate::sys::clock::monotonic_ns;
use crate::sys::sync::{Ordering, Point, crash_point};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The name of a session: 16 random bytes.
pub type SessionId = [u8; 16];

/// The bit of [`left_ns`](SessionEntry::left_ns) that says that the client will not come back.
const FINISHED: u64 = 1;

/// What a look for a session gives.
#[derive(Debug)]
pub enum Lookup<T> {
    /// It is ours now.
    Taken(T),
    /// A living server has it.
    Held,
    Unknown,
}

impl<T> Lookup<T> {
    fn map<U>(self, convert: impl FnOnce(T) -> U) -> Lookup<U> {
        match self {
            Lookup::Taken(found) => Lookup::Taken(convert(found)),
            Lookup::Held => Lookup::Held,
            Lookup::Unknown => Lookup::Unknown,
        }
    }
}

/// A run that was logged and that may not be committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Log {
    batch: BatchNo,
    buffer: usize,
    slots: Range<usize>,
}

impl Log {
    /// Whether the slot, which is Claimed, belongs to it (S4).
    pub(super) fn has(&self, batch: BatchNo, buffer: usize, slot: usize) -> bool {
        (self.batch, self.buffer) == (batch, buffer) && self.slots.contains(&slot)
    }
}

/// The two words of a name.
fn words(id: SessionId) -> [u64; 2] {
    let (halves, _) = id.as_chunks::<8>();
    [u64::from_ne_bytes(halves[0]), u64::from_ne_bytes(halves[1])]
}

impl SessionEntry {
    fn is(&self, id: [u64; 2]) -> bool {
        // SYNC session.id: Acquire here, Release in `assign`. Then the rest is this session's.
        id[0] != 0
            && self.id[0].load(Ordering::Acquire) == id[0]
            && self.id[1].load(Ordering::Relaxed) == id[1]
    }

    fn is_empty(&self) -> bool {
        self.id[0].load(Ordering::Relaxed) == 0
    }

    fn holder(&self) -> Option<Owner> {
        // SYNC session.holder: Acquire here, AcqRel in `change_hands`, Release in `give_back`.
        Owner::unpack_maybe(self.holder.load(Ordering::Acquire))
    }

    /// True when the entry went from one to the other.
    fn change_hands(&self, from: Option<Owner>, to: Option<Owner>) -> bool {
        let (from, to) = (Owner::pack_maybe(from), Owner::pack_maybe(to));
        // SYNC session.holder: AcqRel here, Acquire in `holder` (S1).
        self.holder.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Gives the entry, which is ours, to a session.
    fn assign(&self, id: [u64; 2], next: u64) {
        self.empty();
        self.target.store(0, Ordering::Relaxed);
        // SYNC session.next: Release here, Acquire in `log_of`. Who sees it does not see the target of an earlier session.
        self.next.store(next, Ordering::Release);
        self.id[1].store(id[1], Ordering::Relaxed);
        // SYNC session.id: Release here, Acquire in `is`.
        self.id[0].store(id[0], Ordering::Release);
    }

    fn empty(&self) {
        self.id[0].store(0, Ordering::Relaxed);
        crash_point(Point::SessionEmptied);
    }

    /// The entry, which is ours, is free for others.
    fn give_back(&self, left_ns: u64) {
        self.left_ns.store(left_ns, Ordering::Relaxed);
        // SYNC session.holder: Release here, Acquire in `holder` and `change_hands`.
        self.holder.store(Owner::pack_maybe(None), Ordering::Release);
    }
}

impl Protocol<'_> {
    /// Publishes a run as the next samples of a session. The payload and the stamps are written, and the entry is ours.
    pub fn commit_logged(&self, entry: usize, claim: Claim) {
        let entry = &self.sessions[entry];
        let target = entry.next.load(Ordering::Relaxed).wrapping_add(claim.len() as u64);
        let place = Place { batch: claim.batch, index: claim.buffer };
        // SYNC session.log: Release here, Acquire in `log_of`. A process that sees them sees who holds the entry (S5).
        entry.place.store(place.pack(), Ordering::Release);
        entry.run.store((claim.slot as u64) << 32 | claim.len() as u64, Ordering::Release);
        crash_point(Point::RunPlaced);
        // SYNC session.log: Release here, Acquire in `log_of`. Publishes the payload, the stamps and the place (S2).
        entry.target.store(target, Ordering::Release);
        crash_point(Point::RunLogged);
        self.commit(claim);
        crash_point(Point::RunCommitted);
        // SYNC session.next: Release here, Acquire in `log_of`. After the slots (S3).
        entry.next.store(target, Ordering::Release);
        crash_point(Point::SessionMoved);
    }

    /// What `holder`, which is dead, had logged in an entry. `None`: nothing, or the entry is another's by now (S5).
    fn log_of(&self, entry: &SessionEntry, holder: Owner) -> Result<Option<Log>, Damage> {
        // SYNC session.next: Acquire here, Release in `commit_logged`, `take_entry`, `assign` and `skip_to`.
        let next = entry.next.load(Ordering::Acquire);
        // SYNC session.log: Acquire here, Release in `commit_logged`.
        let target = entry.target.load(Ordering::Acquire);
        let place = Place::unpack(entry.place.load(Ordering::Acquire));
        let run = entry.run.load(Ordering::Acquire);
        if target <= next || entry.holder() != Some(holder) {
            return Ok(None);
        }
        let (slot, len) = ((run >> 32) as usize, (run & u64::from(u32::MAX)) as usize);
        let slots = slot..slot + len;
        if place.index >= self.buffers.len() || slots.end > self.batch_size || target - next != len as u64 {
            return Err(Damage("a session has logged slots that do not exist"));
        }
        Ok(Some(Log { batch: place.batch, buffer: place.index, slots }))
    }

    /// What `owner`, which is dead, had logged and may not have committed.
    pub(super) fn logged_by(&self, owner: Owner) -> Result<Vec<Log>, Damage> {
        let held = self.sessions.iter().filter(|entry| entry.holder() == Some(owner));
        held.filter_map(|entry| self.log_of(entry, owner).transpose()).collect()
    }

    /// Commits what a dead holder had logged in an entry. `next` stays: the entry is not ours (S1).
    fn finish(&self, entry: &SessionEntry, holder: Owner) -> Result<(), Damage> {
        let Some(log) = self.log_of(entry, holder)? else { return Ok(()) };
        let claimed = SlotWord::new(log.batch, SlotKind::Claimed, holder).pack();
        let ready = SlotWord::new(log.batch, SlotKind::Ready, holder).pack();
        for slot in &self.slots_of(log.buffer)?[log.slots] {
            // SYNC ring.ready: Release here, Acquire in `progress`. The log published the payload and the stamp (S2). It fails
            // when the dead holder or another process was faster.
            let _ = slot.word.compare_exchange(claimed, ready, Ordering::AcqRel, Ordering::Relaxed);
        }
        self.control.readable.notify_if_waiting();
        crash_point(Point::RunFinished);
        Ok(())
    }

    /// Takes an entry from a holder that is dead, or from none. False when another process was faster.
    fn take_entry(&self, entry: &SessionEntry, from: Option<Owner>, me: Owner) -> Result<bool, Damage> {
        if let Some(dead) = from {
            self.finish(entry, dead)?;
        }
        let is_ours = entry.change_hands(from, Some(me));
        if is_ours && from.is_some() {
            crash_point(Point::SessionInherited);
            let target = entry.target.load(Ordering::Relaxed);
            // SYNC session.next: Release here, Acquire in `log_of`. The slots of the log are Ready (S3).
            entry.next.store(entry.next.load(Ordering::Relaxed).max(target), Ordering::Release);
        }
        Ok(is_ours)
    }

    /// Takes the entry of a session, unless it was given back before `since_ns`: then it is forgotten.
    pub fn take_session(
        &self,
        id: SessionId,
        me: Owner,
        since_ns: u64,
        is_dead: impl Fn(Owner) -> bool,
    ) -> Result<Lookup<usize>, Damage> {
        let id = words(id);
        for (index, entry) in self.sessions.iter().enumerate().filter(|(_, entry)| entry.is(id)) {
            let holder = entry.holder();
            match holder {
                Some(owner) if owner == me => return Ok(Lookup::Taken(index)),
                Some(owner) if !is_dead(owner) => return Ok(Lookup::Held),
                _ => {}
            }
            if !self.take_entry(entry, holder, me)? {
                return Ok(Lookup::Held);
            }
            let is_forgotten = holder.is_none() && entry.left_ns.load(Ordering::Relaxed) < since_ns;
            if entry.is(id) && !is_forgotten {
                return Ok(Lookup::Taken(index));
            }
            if is_forgotten {
                entry.empty();
            }
            entry.give_back(entry.left_ns.load(Ordering::Relaxed)); // Another session's, by now.
        }
        Ok(Lookup::Unknown)
    }

    /// Finds an entry for a new session, which begins at `next`. If all are in use, one whose client is away makes room:
    /// one that said goodbye, or the one that has been away for longest. `None`: all have a living holder (S6).
    pub fn add_session(&self, id: SessionId, next: u64, me: Owner) -> Option<usize> {
        let id = words(id);
        if id[0] == 0 {
            return None;
        }
        let preference = |(_, entry): &(usize, &SessionEntry)| {
            let left = entry.left_ns.load(Ordering::Relaxed);
            (!entry.is_empty(), left & FINISHED == 0, left)
        };
        loop {
            let free = self.sessions.iter().enumerate().filter(|(_, entry)| entry.holder().is_none());
            let (index, entry) = match free.clone().find(|(_, entry)| entry.is_empty()) {
                Some(empty) => empty,
                None => free.min_by_key(preference)?,
            };
            if entry.change_hands(None, Some(me)) {
                entry.assign(id, next);
                return Some(index);
            }
        }
    }

    /// Finishes what dead servers had logged, and gives their entries back.
    pub fn release_dead_sessions(
        &self,
        me: Owner,
        now_ns: u64,
        is_dead: impl Fn(Owner) -> bool,
    ) -> Result<(), Damage> {
        for entry in self.sessions {
            if let Some(owner) = entry.holder()
                && owner != me
                && is_dead(owner)
                && self.take_entry(entry, Some(owner), me)?
            {
                entry.give_back(now_ns & !FINISHED);
            }
        }
        Ok(())
    }
}

/// A session in a server's hands. Dropping it gives it back: the next server, or this one, goes on with it.
#[derive(Debug)]
pub struct HeldSession {
    producer: Arc<Producer>,
    entry: usize,
    holder: Owner,
    is_finished: bool,
}

impl HeldSession {
    fn of(producer: &Arc<Producer>, entry: usize, holder: Owner) -> HeldSession {
        HeldSession { producer: producer.clone(), entry, holder, is_finished: false }
    }

    /// Takes over what an earlier server of the ring, or this one, knew of a session. One that has been without a holder for longer
    /// than `keep` is forgotten.
    pub fn take(producer: &Arc<Producer>, id: SessionId, keep: Duration) -> Result<Lookup<HeldSession>> {
        let (me, ring) = (producer.owner()?, producer.ring());
        let since_ns = monotonic_ns().saturating_sub(keep.as_nanos().min(u128::from(u64::MAX)) as u64);
        let is_dead = |owner| !producer.seat().is_alive(owner);
        let found = ring.protocol().take_session(id, me, since_ns, is_dead);
        Ok(found.map_err(|damage| ring.damaged(damage))?.map(|entry| HeldSession::of(producer, entry, me)))
    }

    /// Begins a session. `None`: the ring remembers as many as it can, and all have a connection.
    pub fn add(producer: &Arc<Producer>, id: SessionId, next: u64) -> Result<Option<HeldSession>> {
        let me = producer.owner()?;
        let entry = producer.ring().protocol().add_session(id, next, me);
        Ok(entry.map(|entry| HeldSession::of(producer, entry, me)))
    }

    /// Finishes what dead servers of the ring had begun to commit.
    pub fn release_dead(producer: &Producer) -> Result<()> {
        let (me, ring) = (producer.owner()?, producer.ring());
        let is_dead = |owner| !producer.seat().is_alive(owner);
        let released = ring.protocol().release_dead_sessions(me, monotonic_ns(), is_dead);
        released.map_err(|damage| ring.damaged(damage))
    }

    fn entry(&self) -> &SessionEntry {
        &self.producer.ring().protocol().sessions[self.entry]
    }

    /// Everything below is committed, or was dropped.
    pub fn next(&self) -> u64 {
        self.entry().next.load(Ordering::Relaxed)
    }

    /// Steps over samples that were dropped. Nothing is logged.
    pub fn skip_to(&self, next: u64) {
        // SYNC session.next: Release here, Acquire in `log_of`.
        self.entry().next.store(next, Ordering::Release);
    }

    /// Stamps and publishes a claim of this producer as the next samples of the session. Every payload byte is written.
    pub fn commit_each(&self, claim: Claim, origins: impl Iterator<Item = Origin>) {
        self.producer.stamp(&claim, origins);
        self.producer.ring().protocol().commit_logged(self.entry, claim);
    }

    /// Notes that the client will not come back: its entry is the first to be given to another one.
    pub fn finish(&mut self) {
        self.is_finished = true;
    }

    /// Forgets the session.
    pub fn forget(self) {
        if self.is_ours() {
            self.entry().empty();
        }
    }

    /// False in a forked child, and after the producer has left: then it is released as that of a dead server.
    fn is_ours(&self) -> bool {
        self.producer.seat().owner() == Some(self.holder)
    }
}

impl Drop for HeldSession {
    fn drop(&mut self) {
        if self.is_ours() {
            self.entry().give_back(monotonic_ns() & !FINISHED | if self.is_finished { FINISHED } else { 0 });
        }
    }
}
