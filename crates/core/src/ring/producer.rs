//! A producer: claims slots, lets the caller write into them, commits them.

use super::Ring;
use super::layout::{SlotWord, Stamp};
use super::protocol::{Claim, Claimant};
use crate::error::{Error, Result};
pub use crate::policies::{OnFull, ProducerSpec};
use crate::segment::{Activity, Census, Owner, PeerWatch, Role, Seat};
use crate::sys::clock::monotonic_ns;
use crate::sys::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, Point, crash_point};
use crate::sys::wait::{AdaptiveSpin, Deadline, LivenessTicker, SpinOutcome, wait_for};
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The producer of the samples of a claim, for the stamps of its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    pub producer_id: u32,
    /// Of the first row; the others follow.
    pub sequence: u64,
    /// Of the weights that they were made with.
    pub version: u32,
}

/// One producer's handle. Threads may share it.
#[derive(Debug)]
pub struct Producer {
    ring: Arc<Ring>,
    seat: Seat,
    producer_id: AtomicU32,
    /// Whether the caller brought the id.
    chosen_id: bool,
    on_full: OnFull,
    peer_timeout: Option<Duration>,
    sequence: AtomicU64,
    /// Where it claimed last.
    lane: AtomicU64,
    /// Of the thread that waits for room. Another one, with the same handle, sleeps at once.
    spin: Mutex<AdaptiveSpin>,
    ticker: LivenessTicker,
    /// Whether this handle was closed. Calls that wait in other threads look at it.
    closing: AtomicBool,
}

impl Producer {
    /// Attaches to a named ring.
    pub fn attach(name: &str, schema: &[u8], leaf_bytes: &[usize], spec: ProducerSpec) -> Result<Producer> {
        let ring = Ring::open(name, schema, leaf_bytes)?;
        if ring.is_closed() {
            return Err(Error::Closed);
        }
        Producer::attach_to(Arc::new(ring), spec)
    }

    /// Sits down on an open ring.
    pub fn attach_to(ring: Arc<Ring>, spec: ProducerSpec) -> Result<Producer> {
        Producer::attach_as(Role::Producer, ring, spec)
    }

    /// As [`attach_to`](Self::attach_to). `role`: [`Role::Producer`], [`Role::OwnProducer`] for what a learner submits itself, or
    /// [`Role::Network`] for what remote workers send.
    pub fn attach_as(role: Role, ring: Arc<Ring>, spec: ProducerSpec) -> Result<Producer> {
        let seat = Seat::take(ring.segment().clone(), role, |seat| ring.sweep(seat))?;
        Ok(Producer {
            seat,
            producer_id: AtomicU32::new(spec.producer_id.unwrap_or_else(|| ring.next_producer_id())),
            chosen_id: spec.producer_id.is_some(),
            on_full: spec.on_full.unwrap_or(ring.on_full),
            ring,
            peer_timeout: spec.peer_timeout,
            sequence: AtomicU64::new(0),
            lane: AtomicU64::new(0),
            spin: Mutex::default(),
            ticker: LivenessTicker::default(),
            closing: AtomicBool::new(false),
        })
    }

    pub fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    pub fn seat(&self) -> &Seat {
        &self.seat
    }

    /// Living consumers, and the pids of those that died without closing.
    pub fn consumers(&self) -> Census {
        self.seat.census(Role::Consumer)
    }

    /// Whether no consumer lives, one of them died, and none can come, because the name is gone. A consumer that died after it had
    /// shut the ring down has closed it.
    pub fn is_orphaned(&self) -> bool {
        self.seat.all_died_for_good(Role::Consumer) && !self.ring.is_closed()
    }

    /// An error when no learner is left to make room, and none came in time, or none can come.
    pub fn check_learners(&self, watch: &mut PeerWatch) -> Result<()> {
        let waiting = || format!("{} samples", self.ring.census().ready_samples);
        self.seat.check_learners(watch, self.is_orphaned(), waiting)
    }

    pub fn producer_id(&self) -> u32 {
        self.producer_id.load(Ordering::Relaxed)
    }

    /// A number that no other producer of this ring has, for a client whose samples will be committed here.
    pub fn next_producer_id(&self) -> u32 {
        self.ring.next_producer_id()
    }

    /// Samples committed through this handle.
    pub fn sent(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }

    /// The owner of claims through this handle. A forked child sits down anew.
    #[inline]
    pub fn owner(&self) -> Result<Owner> {
        match self.seat.owner() {
            Some(owner) => Ok(owner),
            None => self.rejoin(),
        }
    }

    #[inline]
    fn claimant(&self, owner: Owner) -> Claimant<'_> {
        Claimant { owner, lane: &self.lane, retries: &self.seat.record().retries }
    }

    /// In a forked child: sits down anew, as a producer of its own with its own count.
    #[cold]
    fn rejoin(&self) -> Result<Owner> {
        let owner = self.seat.rejoin(|seat| self.ring.sweep(seat))?;
        if !self.chosen_id {
            self.producer_id.store(self.ring.next_producer_id(), Ordering::Relaxed);
            self.sequence.store(0, Ordering::Relaxed);
        }
        Ok(owner)
    }

    /// Claims up to `want` adjacent slots. `None`: dropped, as the policy says. Ends in [`commit`](Self::commit) or
    /// [`abort`](Self::abort); [`reserve`](Self::reserve) gives a guard that cannot forget.
    #[inline(always)]
    pub fn claim(&self, want: usize, deadline: Deadline) -> Result<Option<Claim>> {
        let owner = self.owner()?;
        let protocol = self.ring.protocol();
        if protocol.control.closed.seems_set() || self.closing.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        match protocol.try_claim(self.claimant(owner), want) {
            Ok(Some(claim)) => Ok(Some(claim)),
            Ok(None) => self.claim_in_full_ring(owner, want, deadline),
            Err(damage) => Err(self.ring.damaged(damage)),
        }
    }

    /// Claims if there is room. Not for `send`'s way, which inlines it.
    #[inline(never)]
    fn try_claim(&self, owner: Owner, want: usize) -> Result<Option<Claim>> {
        let claim = self.ring.protocol().try_claim(self.claimant(owner), want);
        claim.map_err(|damage| self.ring.damaged(damage))
    }

    #[cold]
    fn claim_in_full_ring(&self, owner: Owner, want: usize, deadline: Deadline) -> Result<Option<Claim>> {
        let counters = &self.ring.protocol().control.counters;
        let waits = self.on_full == OnFull::Block && deadline != Deadline::Now;
        if !waits && self.ticker.is_due() {
            self.ring.recover(&self.seat)?; // Blocking callers run recovery in their own wait loop.
            if let Some(claim) = self.try_claim(owner, want)? {
                return Ok(Some(claim));
            }
        }
        match self.on_full {
            OnFull::Block => self.wait_for_room(owner, want, deadline).map(Some),
            OnFull::Error => Err(Error::Full),
            OnFull::DropNewest => {
                counters.dropped_newest.fetch_add(want as u64, Ordering::Relaxed);
                Ok(None)
            }
            OnFull::DropOldest => loop {
                let dropped = self.ring.protocol().drop_oldest().map_err(|d| self.ring.damaged(d))?;
                counters.dropped_oldest.fetch_add(dropped.unwrap_or(0) as u64, Ordering::Relaxed);
                let claim = self.try_claim(owner, want)?;
                if claim.is_some() {
                    return Ok(claim);
                }
                if dropped.is_none() {
                    // Every batch is being read, or being written by others.
                    counters.dropped_newest.fetch_add(want as u64, Ordering::Relaxed);
                    return Ok(None);
                }
            },
        }
    }

    /// Waits for room without sleeping, where the last wait was short, and claims. `None`: sleep, in
    /// [`claim`](Self::claim). Signals that come meanwhile interrupt nothing: look for them then.
    pub fn claim_spinning(&self, want: usize) -> Result<Option<Claim>> {
        if self.on_full != OnFull::Block {
            return Ok(None);
        }
        let Ok(mut spin) = self.spin.try_lock() else { return Ok(None) };
        let (protocol, owner) = (self.ring.protocol(), self.owner()?);
        let _waiting = self.seat.waits(Activity::WaitRoom);
        loop {
            let open = protocol.control.write.open.load(Ordering::Relaxed);
            match spin.spin_until(|| protocol.may_have_room(open) || self.is_closed()) {
                SpinOutcome::Expired | SpinOutcome::Skipped => return Ok(None),
                SpinOutcome::Happened if self.is_closed() => return Err(Error::Closed),
                SpinOutcome::Happened => {}
            }
            let claim = self.try_claim(owner, want)?;
            if claim.is_some() {
                spin.finish();
                protocol.control.counters.blocked.fetch_add(1, Ordering::Relaxed);
                return Ok(claim);
            }
        }
    }

    fn wait_for_room(&self, owner: Owner, want: usize, deadline: Deadline) -> Result<Claim> {
        if deadline == Deadline::Now {
            return Err(Error::Full);
        }
        let waiting = self.seat.waits(Activity::WaitRoom);
        let claim = self.sleep_for_room(owner, want, deadline);
        drop(waiting);
        if !matches!(claim, Err(Error::Interrupted))
            && let Ok(mut spin) = self.spin.try_lock()
        {
            spin.finish();
        }
        claim
    }

    fn sleep_for_room(&self, owner: Owner, want: usize, deadline: Deadline) -> Result<Claim> {
        let control = self.ring.protocol().control;
        control.counters.blocked.fetch_add(1, Ordering::Relaxed);
        let mut peer_watch = PeerWatch::with_timeout(self.peer_timeout);
        let claim = || {
            if self.is_closed() {
                return Err(Error::Closed);
            }
            self.try_claim(owner, want)
        };
        let check = || {
            self.ring.recover(&self.seat)?;
            self.check_learners(&mut peer_watch)
        };
        let writable = &control.writable;
        wait_for(writable, || writable.announce(), deadline, claim, check)?.ok_or(Error::Timeout)
    }

    /// Claims one slot or a run of them, with a guard.
    pub fn reserve<P: Deref<Target = Producer>>(
        this: P,
        want: usize,
        deadline: Deadline,
    ) -> Result<Option<Slot<P>>> {
        Ok(this.claim(want, deadline)?.map(|claim| Slot::of(this, claim)))
    }

    /// Where a leaf of a claimed row lies.
    #[inline]
    pub fn leaf(&self, claim: &Claim, leaf: usize) -> *mut u8 {
        self.ring.leaf(claim.buffer, leaf, claim.slot)
    }

    /// Stamps and publishes a claim. Every payload byte is written.
    #[inline]
    pub fn commit(&self, claim: Claim, version: u32) {
        let origin = self.assign_sequence(&claim, version);
        self.commit_as(claim, origin);
    }

    /// Gives the samples of a claim their numbers. A caller that is sure to commit it calls this before the copy: after it, the
    /// locked instruction would wait for all of the copy's stores.
    #[inline]
    pub fn assign_sequence(&self, claim: &Claim, version: u32) -> Origin {
        let sequence = self.sequence.fetch_add(claim.len as u64, Ordering::Relaxed);
        Origin { producer_id: self.producer_id(), sequence, version }
    }

    /// Stamps and publishes a claim in another's name. Every payload byte is written.
    #[inline(always)]
    pub fn commit_as(&self, claim: Claim, origin: Origin) {
        self.commit_each(claim, (origin.sequence..).map(|sequence| Origin { sequence, ..origin }));
    }

    /// Stamps and publishes a claim; each row has an origin of its own. Every payload byte is written.
    #[inline(always)]
    pub fn commit_each(&self, claim: Claim, origins: impl Iterator<Item = Origin>) {
        self.stamp(&claim, origins);
        self.ring.protocol().commit(claim);
    }

    /// Stamps a claim that is about to be published. Every payload byte is written.
    #[inline(always)]
    pub(super) fn stamp(&self, claim: &Claim, origins: impl Iterator<Item = Origin>) {
        crash_point(Point::SlotWritten);
        let protocol = self.ring.protocol();
        let committed_ns = monotonic_ns();
        let first = claim.buffer * protocol.batch_size + claim.slot;
        let mut last_version = 0;
        for (slot, origin) in protocol.slots[first..first + claim.len].iter().zip(origins) {
            let Origin { producer_id, sequence, version } = origin;
            last_version = version;
            debug_assert_eq!(SlotWord::unpack(slot.word.load(Ordering::Relaxed)).owner, claim.owner);
            let stamp = Stamp { sequence, committed_ns, producer_id, version };
            // SAFETY: the slot is claimed by us, so only we read or write its stamp (I1).
            unsafe { slot.stamp.get().write(stamp) };
        }
        self.seat.note_commit(claim.len, committed_ns, last_version);
    }

    /// Adds a copy that took `ns`, and stands for `of` copies like it, to the time that this producer copies.
    pub fn note_copy(&self, ns: u64, of: u64, bytes: usize) {
        self.seat.record().account.note_copy(ns, of, bytes);
    }

    /// Gives a claim back.
    pub fn abort(&self, claim: Claim) {
        self.ring.protocol().abort(claim);
    }

    /// Whether a claim is still this process's. In a forked child it is its parent's.
    pub fn owns(&self, claim: &Claim) -> bool {
        self.seat.owner() == Some(claim.owner)
    }

    /// Hands the unfinished batch to the consumers, as it is.
    pub fn flush(&self) -> Result<()> {
        self.ring.protocol().flush().map_err(|d| self.ring.damaged(d))
    }

    /// Sleeps until there is room (or the ring or this handle is closed), and claims nothing: for event loops,
    /// which then try. False when the time was over first.
    pub fn wait_writable(&self, deadline: Deadline) -> Result<bool> {
        let writable = &self.ring.protocol().control.writable;
        let look = || Ok((self.ring.has_room() || self.is_closed()).then_some(()));
        let check = || self.ring.recover(&self.seat).map(drop);
        let _waiting = self.seat.waits(Activity::WaitRoom);
        Ok(wait_for(writable, || writable.announce(), deadline, look, check)?.is_some())
    }

    /// Whether nothing more can be claimed: the ring is shut down, or this handle closed.
    pub fn is_closed(&self) -> bool {
        self.closing.load(Ordering::Relaxed) || self.ring.is_closed()
    }

    /// Ends the calls that wait with this handle, in whichever thread, and every later one. The seat stays until it is
    /// dropped: what is reserved may still be committed.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        // A forked child that has claimed nothing has no waiters of its own, and leaves its parent's alone.
        if self.seat.owner().is_some() {
            // A thread that announced itself before this wakes; one that does so later sees the flag (SYNC event.ticket).
            self.ring.protocol().control.writable.notify();
        }
    }

    /// Gives the seat back, for a handle that is kept after it was closed. Nothing is claimed through it any more.
    pub fn vacate(&self) {
        self.seat.vacate();
    }

    pub fn on_full(&self) -> OnFull {
        self.on_full
    }
}

/// A claimed run of slots. Dropping it gives it back.
#[derive(Debug)]
pub struct Slot<P: Deref<Target = Producer>> {
    producer: P,
    claim: Option<Claim>,
}

impl<P: Deref<Target = Producer>> Slot<P> {
    /// A guard for a claim of this producer.
    pub fn of(producer: P, claim: Claim) -> Slot<P> {
        Slot { producer, claim: Some(claim) }
    }

    /// How many slots the run has.
    #[allow(clippy::len_without_is_empty)] // A run has at least one slot.
    pub fn len(&self) -> usize {
        self.claim().len
    }

    fn claim(&self) -> &Claim {
        self.claim.as_ref().expect("a slot has its claim until it is committed or dropped")
    }

    /// The buffer in which the run lies.
    pub fn buffer(&self) -> usize {
        self.claim().buffer
    }

    /// Where a leaf of the run lies; writable until commit.
    pub fn leaf(&self, leaf: usize) -> *mut u8 {
        self.producer.leaf(self.claim(), leaf)
    }

    pub fn producer(&self) -> &Producer {
        &self.producer
    }

    /// Publishes the run.
    pub fn commit(mut self, version: u32) {
        if let Some(claim) = self.take_if_ours() {
            self.producer.commit(claim, version);
        }
    }

    /// `None` in a forked child: the claim is its parent's.
    fn take_if_ours(&mut self) -> Option<Claim> {
        self.claim.take().filter(|claim| self.producer.owns(claim))
    }
}

impl<P: Deref<Target = Producer>> Drop for Slot<P> {
    fn drop(&mut self) {
        if let Some(claim) = self.take_if_ours() {
            self.producer.abort(claim);
        }
    }
}
