//! A consumer: takes whole batches, reads them in place, gives them back.

use super::layout::{BatchNo, Slot, SlotWord, Stamp};
use super::protocol::Taken;
use super::{IfExists, Ring, RingSpec, stamp_of};
use crate::error::{Error, Result};
use crate::segment::{Activity, LearnerSeat, Owner, PeerWatch, Role, catalog};
use crate::sys::clock::monotonic_ns;
use crate::sys::sync::{AtomicU64, Ordering, Woken};
use crate::sys::wait::{Deadline, LivenessPoll, LivenessTicker, OrderGrace, spin_gently};
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One consumer's handle. Threads may share it: each batch goes to one of them.
#[derive(Debug)]
pub struct Consumer {
    ring: Arc<Ring>,
    pub(super) seat: LearnerSeat,
    peer_timeout: Option<Duration>,
    grace: OrderGrace,
    /// Batches taken past an older one since the last look at its writers.
    overtaken: AtomicU64,
    pub(super) ticker: LivenessTicker,
}

impl Consumer {
    /// Makes a ring, or attaches to the one that is there, as `if_exists` says.
    pub fn open(
        spec: &RingSpec<'_>,
        if_exists: IfExists,
        peer_timeout: Option<Duration>,
    ) -> Result<Consumer> {
        let open =
            |name: &str| Ring::open(name, spec.schema, spec.leaf_bytes).and_then(|ring| ring.fits(spec));
        let sit_down = |ring, resumed| Self::sit_down(ring, resumed, peer_timeout);
        if_exists.open(spec.name, open, || Ring::create(spec), Ring::segment, sit_down, Ring::holds_data)
    }

    fn sit_down(ring: Ring, resumed: bool, peer_timeout: Option<Duration>) -> Result<Consumer> {
        let seat = LearnerSeat::take(ring.segment().clone(), resumed)?;
        Self::sit_on(ring, seat, peer_timeout)
    }

    pub(super) fn sit_on(ring: Ring, seat: LearnerSeat, peer_timeout: Option<Duration>) -> Result<Consumer> {
        let resumed = seat.resumed();
        if resumed {
            ring.recover(&seat)?; // What the last learner held is offered again, also what this seat's last holder did.
        }
        Ok(Consumer {
            ring: Arc::new(ring),
            seat,
            peer_timeout,
            grace: OrderGrace::default(),
            overtaken: AtomicU64::new(0),
            ticker: LivenessTicker::default(),
        })
    }

    pub fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Whether the ring was there already.
    pub fn resumed(&self) -> bool {
        self.seat.resumed()
    }

    /// How many samples earlier learners left here, and how old the segment is. `None` if there are none, or another learner lives.
    pub fn found(&self) -> Option<(usize, Duration)> {
        self.seat.found(|| self.ring.census().committed())
    }

    fn owner(&self) -> Result<Owner> {
        self.seat.owner_or_rejoin(|seat| self.ring.sweep(seat))
    }

    /// Takes the oldest complete batch. At the deadline, when `at_least` is given, the oldest unfinished batch with
    /// that many samples is closed early and taken, if its writers are done.
    pub fn take<C: Deref<Target = Consumer>>(
        this: C,
        deadline: Deadline,
        at_least: Option<usize>,
    ) -> Result<Option<Batch<C>>> {
        let taken = this.take_raw(deadline, at_least)?;
        Ok(taken.map(|taken| Batch::of(this, taken)))
    }

    /// Takes a batch if there is one and it is its turn; never waits. For callers that come back soon, such as event loops.
    pub fn try_take_in_order<C: Deref<Target = Consumer>>(this: C) -> Result<Option<Batch<C>>> {
        let taken = this.try_take(this.owner()?)?;
        Ok(taken.map(|taken| Batch::of(this, taken)))
    }

    /// As [`try_take_in_order`](Self::try_take_in_order), for a moment again and again, without sleeping. Signals that come
    /// meanwhile interrupt nothing.
    pub fn take_spinning<C: Deref<Target = Consumer>>(this: C, limit: Duration) -> Result<Option<Batch<C>>> {
        let (owner, started) = (this.owner()?, Instant::now());
        let waiting = this.seat.waits(Activity::WaitData);
        let mut taken = this.try_take(owner)?;
        while taken.is_none() && started.elapsed() < limit {
            spin_gently();
            taken = this.try_take(owner)?;
        }
        drop(waiting);
        Ok(taken.map(|taken| Batch::of(this, taken)))
    }

    /// `None` only when `deadline` is [`Deadline::Now`] and there is nothing.
    fn take_raw(&self, deadline: Deadline, at_least: Option<usize>) -> Result<Option<Taken>> {
        self.check_open()?;
        let owner = self.owner()?;
        if deadline == Deadline::Now {
            let mut taken = self.take_any(owner)?;
            if taken.is_none() && self.ticker.is_due() {
                self.ring.recover(&self.seat)?; // Blocking callers run recovery in their own wait loop.
                taken = self.take_any(owner)?;
            }
            if taken.is_none() && self.seal_at_least(at_least)? {
                taken = self.take_any(owner)?;
            }
            return if taken.is_none() && self.ring.is_closed() { Err(Error::Closed) } else { Ok(taken) };
        }
        if let Some(taken) = self.try_take(owner)? {
            return Ok(Some(taken));
        }
        let started = Instant::now();
        let waiting = self.seat.waits(Activity::WaitData);
        let taken = self.wait_for_batch(owner, deadline, at_least)?;
        drop(waiting);
        self.ring.protocol().control.wait.record(started.elapsed().as_nanos() as u64);
        Ok(Some(taken))
    }

    fn wait_for_batch(&self, owner: Owner, deadline: Deadline, at_least: Option<usize>) -> Result<Taken> {
        let protocol = self.ring.protocol();
        let control = protocol.control;
        let mut poll = LivenessPoll::start();
        let mut peer_watch = PeerWatch::with_timeout(self.peer_timeout);
        let mut all_held = AllHeldTimer::default();
        loop {
            let ticket = control.readable.announce();
            self.check_open()?;
            let idle = protocol.aim(|batch| self.waits_for_order(batch)).map_err(|d| self.ring.damaged(d))?;
            if !idle && let Some(taken) = self.try_take(owner)? {
                control.readable.notify_if_waiting(); // Others may have relied on us for what else is complete.
                return Ok(taken);
            }
            if !idle {
                continue; // Another consumer was faster.
            }
            if self.ring.is_closed() {
                return Err(Error::Closed);
            }
            let Some(left) = deadline.remaining() else {
                if let Some(taken) = self.take_any(owner)? {
                    return Ok(taken);
                }
                if self.seal_at_least(at_least)?
                    && let Some(taken) = self.take_any(owner)?
                {
                    return Ok(taken);
                }
                return Err(Error::Timeout);
            };
            match control.readable.wait(ticket, self.sleep_time(&mut poll).min(left)) {
                Woken::Notified => {
                    self.check_open()?;
                    if let Some(taken) = self.try_take(owner)? {
                        control.readable.notify_if_waiting(); // As above.
                        return Ok(taken);
                    }
                }
                Woken::Interrupted => return Err(Error::Interrupted),
                Woken::Timeout => {
                    self.ring.recover(&self.seat)?;
                    let released = control.counters.batches_released.load(Ordering::Relaxed);
                    if all_held.has_expired(self.holds_all(), released) {
                        return Err(Error::AllHeld(protocol.buffers.len()));
                    }
                    self.check_producers(&mut peer_watch)?;
                }
            }
        }
    }

    /// Whether every batch is in this consumer's hands, so that none can be filled.
    pub fn holds_all(&self) -> bool {
        let protocol = self.ring.protocol();
        self.seat.owner().is_some_and(|owner| protocol.held_by(owner) == protocol.buffers.len())
    }

    fn seal_at_least(&self, at_least: Option<usize>) -> Result<bool> {
        let Some(at_least) = at_least else { return Ok(false) };
        self.ring.protocol().seal_at_least(at_least).map_err(|d| self.ring.damaged(d))
    }

    pub(super) fn waits_for_order(&self, batch: BatchNo) -> bool {
        self.grace.still_applies(batch.value(), monotonic_ns())
    }

    /// How long to sleep: until the next liveness poll, or until an older batch has been waited for long enough.
    pub(super) fn sleep_time(&self, poll: &mut LivenessPoll) -> Duration {
        let pause = poll.pause();
        self.grace.remaining(monotonic_ns()).map_or(pause, |left| left.min(pause))
    }

    /// The oldest complete batch, unless order is worth a moment's waiting.
    fn try_take(&self, owner: Owner) -> Result<Option<Taken>> {
        let taken = self.ring.protocol().try_take_unless(owner, |batch| self.waits_for_order(batch));
        taken.map_err(|d| self.ring.damaged(d))?.map(|taken| self.check_overtaken(taken)).transpose()
    }

    /// The oldest complete batch, in order or not.
    pub(super) fn take_in_any_order(&self) -> Result<Option<Taken>> {
        self.take_any(self.owner()?)
    }

    fn take_any(&self, owner: Owner) -> Result<Option<Taken>> {
        let taken = self.ring.protocol().try_take(owner);
        taken.map_err(|d| self.ring.damaged(d))?.map(|taken| self.check_overtaken(taken)).transpose()
    }

    /// Checks now and then whether the writer of an older batch that was passed over lives: nothing is stuck, so no sleeper does.
    fn check_overtaken(&self, taken: Taken) -> Result<Taken> {
        let protocol = self.ring.protocol();
        let rounds = protocol.buffers.len() as u64;
        if taken.overtook
            && self.overtaken.fetch_add(1, Ordering::Relaxed).is_multiple_of(rounds)
            && let Err(error) = self.ring.recover(&self.seat)
        {
            protocol.give_back(taken);
            return Err(error);
        }
        Ok(taken)
    }

    /// Sleeps until there is a batch (or the ring or this handle is closed), and takes nothing: for event loops,
    /// which then try. False when the time was over first.
    pub fn wait_readable(&self, deadline: Deadline) -> Result<bool> {
        let protocol = self.ring.protocol();
        let mut poll = LivenessPoll::start();
        let _waiting = self.seat.waits(Activity::WaitData);
        loop {
            let ticket = protocol.control.readable.announce();
            let idle = protocol.aim(|batch| self.waits_for_order(batch)).map_err(|d| self.ring.damaged(d))?;
            if !idle || self.ring.is_closed() || self.check_open().is_err() {
                return Ok(true);
            }
            let Some(left) = deadline.remaining() else { return Ok(false) };
            match protocol.control.readable.wait(ticket, self.sleep_time(&mut poll).min(left)) {
                Woken::Notified => {}
                Woken::Interrupted => return Err(Error::Interrupted),
                Woken::Timeout => drop(self.ring.recover(&self.seat)?),
            }
        }
    }

    /// Closes the unfinished batches early.
    pub fn flush(&self) -> Result<()> {
        self.ring.protocol().flush().map_err(|d| self.ring.damaged(d))
    }

    /// Leaves, and ends the calls that wait with this handle, in whichever thread. The last living consumer takes the name
    /// away and shuts the ring down.
    pub fn close(&self) -> Result<()> {
        self.seat.close(|| self.ring.shut_down(), || self.end_calls())
    }

    /// Ends as if this process had been killed: what was committed stays for the next learner, also what this one holds.
    /// Without samples or workers, the name goes; without a name that can be found again, this is [`close`](Self::close).
    pub fn abandon(this: Arc<Consumer>) -> Result<()> {
        Self::abandon_with(this, || ())
    }

    /// As [`abandon`](Self::abandon). `let_go` drops what else keeps this handle: its batches are given back.
    pub fn abandon_with(this: Arc<Consumer>, let_go: impl FnOnce()) -> Result<()> {
        let left = this.seat.abandon(|| this.ring.shut_down(), || this.end_calls())?;
        let_go();
        drop(this);
        left.map_or(Ok(()), |name| catalog::collect_unless(&name, Ring::holds_data).map(drop))
    }

    fn end_calls(&self) {
        // A thread that announced itself before this wakes; one that does so later sees the flag (SYNC event.ticket).
        self.ring.protocol().control.readable.notify();
    }

    /// An error when this handle was closed, but not the ring: the rest is for the others. After a shutdown it may be taken.
    fn check_open(&self) -> Result<()> {
        self.seat.check_open(|| self.ring.is_closed())
    }

    /// An error when no producer is left, and none came in time.
    pub fn check_producers(&self, watch: &mut PeerWatch) -> Result<()> {
        self.seat.check_producers(watch, "batch", || match self.ring.census().ready_samples {
            0 => String::new(),
            ready => {
                format!("{ready} committed samples wait in an unfinished one: flush() hands them over. ")
            }
        })
    }

    /// Living producers, and the pids of those that died without closing.
    pub fn producers(&self) -> crate::segment::Census {
        self.seat.census(Role::Producer)
    }

    /// How many of them are the learners' own: what `submit` writes with.
    pub fn own_producers(&self) -> usize {
        self.seat.census(Role::OwnProducer).alive
    }
}

impl Drop for Consumer {
    /// As [`close`](Consumer::close), without its error.
    fn drop(&mut self) {
        let _ = self.close();
    }
}

/// Since when a consumer has held every batch, and how many had been released by then. Threads that work hold them for a
/// moment; a consumer that waits for what it holds itself would wait for ever.
#[derive(Debug, Default)]
struct AllHeldTimer(Option<(Instant, u64)>);

impl AllHeldTimer {
    const LIMIT: Duration = Duration::from_secs(1);

    /// True when nothing was let go for too long.
    fn has_expired(&mut self, holds_all: bool, released: u64) -> bool {
        match self.0 {
            Some((since, then)) if holds_all && then == released => since.elapsed() >= Self::LIMIT,
            _ => {
                self.0 = holds_all.then(|| (Instant::now(), released));
                false
            }
        }
    }
}

/// A batch in a consumer's hands. Dropping it gives the room back, or the batch if the consumer was abandoned.
#[derive(Debug)]
pub struct Batch<C: Deref<Target = Consumer>> {
    consumer: C,
    taken: Option<Taken>,
}

impl<C: Deref<Target = Consumer>> Batch<C> {
    pub(super) fn of(consumer: C, taken: Taken) -> Batch<C> {
        consumer.seat.holds(1);
        let (line, now_ns) = (&consumer.ring.protocol().buffers[taken.buffer], monotonic_ns());
        line.taken_ns.store(now_ns, Ordering::Relaxed);
        consumer.seat.holds_anew(now_ns);
        Batch { consumer, taken: Some(taken) }
    }

    fn taken(&self) -> &Taken {
        self.taken.as_ref().expect("a batch is taken until it is released")
    }

    /// Committed samples in it.
    #[allow(clippy::len_without_is_empty)] // A batch without a sample is never handed out.
    pub fn len(&self) -> usize {
        self.taken().ready
    }

    /// The number of the batch, and of its buffer.
    pub fn number(&self) -> (u64, usize) {
        (self.taken().batch.value(), self.taken().buffer)
    }

    pub fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    /// Runs of rows with samples in them, as `(first, length)`: one run, unless it was closed early with gaps.
    pub fn runs(&self) -> Vec<(usize, usize)> {
        let taken = self.taken();
        let protocol = self.consumer.ring.protocol();
        if taken.ready == protocol.batch_size {
            return vec![(0, taken.ready)];
        }
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (row, slot) in self.slots().iter().enumerate() {
            // SYNC ring.ready: Acquire here, Release in `commit` (I2).
            let word = SlotWord::unpack(slot.word.load(Ordering::Acquire));
            if !word.is_ready_for(taken.batch) {
                continue;
            }
            match runs.last_mut() {
                Some((first, len)) if *first + *len == row => *len += 1,
                _ => runs.push((row, 1)),
            }
        }
        runs
    }

    /// Where a leaf of a row lies; valid to read until release, and mapped for ever.
    pub fn leaf(&self, leaf: usize, row: usize) -> *const u8 {
        self.consumer.ring.leaf(self.taken().buffer, leaf, row)
    }

    /// The stamp of one row.
    pub fn stamp(&self, row: usize) -> Stamp {
        stamp_of(&self.slots()[row])
    }

    /// The stamps of all rows that have a sample, in `runs`.
    pub fn stamps(&self, runs: &[(usize, usize)]) -> Vec<Stamp> {
        let mut stamps = Vec::with_capacity(self.len());
        for &(first, len) in runs {
            stamps.extend(self.slots()[first..first + len].iter().map(stamp_of));
        }
        stamps
    }

    fn slots(&self) -> &[Slot] {
        let protocol = self.consumer.ring.protocol();
        let first = self.taken().buffer * protocol.batch_size;
        &protocol.slots[first..first + protocol.batch_size]
    }

    /// Notes how long a sample of the batch waited.
    pub fn record_dwell(&self, stamp: &Stamp) {
        let dwell = monotonic_ns().saturating_sub(stamp.committed_ns);
        self.consumer.ring.protocol().control.dwell.record(dwell);
    }

    /// Puts it back unread, for the next consumer.
    pub fn give_back(mut self) {
        if let Some(taken) = self.take_if_ours() {
            self.consumer.ring.protocol().give_back(taken);
        }
    }

    /// `None` in a forked child: the batch is its parent's.
    fn take_if_ours(&mut self) -> Option<Taken> {
        let taken = self.taken.take().filter(|taken| self.consumer.seat.owner() == Some(taken.owner))?;
        self.consumer.seat.let_go(1);
        Some(taken)
    }
}

impl<C: Deref<Target = Consumer>> Drop for Batch<C> {
    fn drop(&mut self) {
        if let Some(taken) = self.take_if_ours() {
            let protocol = self.consumer.ring.protocol();
            if self.consumer.seat.is_abandoned() {
                return protocol.give_back(taken);
            }
            let counters = &protocol.control.counters;
            counters.batches_released.fetch_add(1, Ordering::Relaxed);
            counters.samples_released.fetch_add(taken.ready as u64, Ordering::Relaxed);
            protocol.release(taken);
        }
    }
}
