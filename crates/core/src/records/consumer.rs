//! A consumer: takes single records, reads them in place, gives their room back.

use super::protocol::{Stamp, Taken, TakenRecord};
use super::recovery::{self, RecoveredSeats};
use super::{Deadline, IfExists, Records, RecordsSpec};
use crate::error::{Damage, Error, Result};
use crate::segment::{Activity, Census, LearnerSeat, Owner, PeerWatch, Role, catalog};
use crate::sys::clock::monotonic_ns;
use crate::sys::prefetch::prefetch;
use crate::sys::sync::{AtomicUsize, Ordering};
use crate::sys::wait::{LivenessTicker, wait_for};
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often a consumer looks again before it sleeps: to wake it costs the producer more than a record does. About a
/// microsecond at first, twice as often whenever that paid, half as often whenever it did not. Never on one core, where the
/// producer could not commit meanwhile.
const LOOKS: std::ops::RangeInclusive<usize> = 16..=256;

/// One consumer's handle. Threads may share it: each record goes to one of them.
#[derive(Debug)]
pub struct Consumer {
    records: Arc<Records>,
    seat: LearnerSeat,
    peer_timeout: Option<Duration>,
    /// The lane whose turn it is, for this consumer.
    turn: AtomicUsize,
    /// How often to look again before sleeping; 0 on one core.
    eagerness: AtomicUsize,
    recovered: Mutex<RecoveredSeats>,
    ticker: LivenessTicker,
}

impl Consumer {
    /// Makes records, or attaches to those that are there, as `if_exists` says.
    pub fn open(
        spec: &RecordsSpec<'_>,
        if_exists: IfExists,
        peer_timeout: Option<Duration>,
    ) -> Result<Consumer> {
        let open = |name: &str| Records::open(name, Some(spec.schema)).and_then(|records| records.fits(spec));
        let sit_down = |records, resumed| Self::sit_down(records, resumed, peer_timeout);
        let create = || Records::create(spec);
        if_exists.open(spec.name, open, create, Records::segment, sit_down, Records::holds_data)
    }

    /// Attaches to records that are there. `schema`: refuse any other; `None`: whatever the segment says it is.
    pub fn attach(name: &str, schema: Option<&[u8]>, peer_timeout: Option<Duration>) -> Result<Consumer> {
        let records = Records::open(name, schema)?;
        records.segment().check_open(records.is_closed())?;
        Self::sit_down(records, true, peer_timeout)
    }

    fn sit_down(records: Records, resumed: bool, peer_timeout: Option<Duration>) -> Result<Consumer> {
        let seat = LearnerSeat::take(records.segment().clone(), resumed)?;
        Ok(Self::sit_on(records, seat, peer_timeout))
    }

    pub(super) fn sit_on(records: Records, seat: LearnerSeat, peer_timeout: Option<Duration>) -> Consumer {
        if seat.resumed() {
            // What the last learner held is offered again, also what this seat's last holder did.
            recovery::recover(&records.protocol(), |owner| !seat.is_alive(owner));
        }
        Consumer {
            records: Arc::new(records),
            seat,
            peer_timeout,
            turn: AtomicUsize::new(0),
            eagerness: AtomicUsize::new(if has_several_cores() { *LOOKS.start() } else { 0 }),
            recovered: Mutex::default(),
            ticker: LivenessTicker::default(),
        }
    }

    pub fn records(&self) -> &Arc<Records> {
        &self.records
    }

    /// Whether the records were there already.
    pub fn resumed(&self) -> bool {
        self.seat.resumed()
    }

    /// How many records earlier learners left here, and how old the segment is. `None` if there are none, or another learner lives.
    pub fn found(&self) -> Option<(usize, Duration)> {
        self.seat.found(|| self.records.census().committed())
    }

    pub(super) fn seat(&self) -> &LearnerSeat {
        &self.seat
    }

    #[inline]
    pub(super) fn owner(&self) -> Result<Owner> {
        self.seat.owner_or_rejoin(|seat| self.records.sweep(seat))
    }

    /// Takes the next record; the lanes have their turns. `None` only with [`Deadline::Now`], when there is none.
    #[inline]
    pub fn take<C: Deref<Target = Consumer>>(this: C, deadline: Deadline) -> Result<Option<Record<C>>> {
        let taken = this.take_raw(deadline)?;
        this.seat.holds(taken.is_some() as usize);
        Ok(taken.map(|taken| Record { consumer: this, taken: Some(taken) }))
    }

    /// Takes up to `max` records: waits for the first, then takes what is there, one of each lane in turn.
    pub fn take_many<C: Deref<Target = Consumer> + Clone>(
        this: C,
        max: usize,
        deadline: Deadline,
    ) -> Result<Vec<Record<C>>> {
        if max == 0 {
            return Ok(Vec::new());
        }
        this.check_open()?;
        let owner = this.owner()?;
        let mut taken = this.try_take_many(owner, max)?;
        if taken.is_empty()
            && let Some(first) = this.take_raw(deadline)?
        {
            taken.push(first);
            // Damage ends it here; the next call that meets it says so.
            taken.extend(this.try_take_many(owner, max - 1).unwrap_or_default());
        }
        this.seat.holds(taken.len());
        Ok(taken.into_iter().map(|taken| Record { consumer: this.clone(), taken: Some(taken) }).collect())
    }

    #[inline]
    fn try_take(&self, owner: Owner) -> Result<Option<Taken>> {
        let turn = self.turn.load(Ordering::Relaxed);
        let taken = self
            .records
            .protocol()
            .try_take(owner, turn)
            .map_err(|damage| self.report_damage(damage, turn))?;
        if let Some(taken) = &taken {
            self.turn.store(taken.lane + 1, Ordering::Relaxed);
        }
        Ok(taken)
    }

    /// A record that this handle has taken.
    pub(super) fn hold(self: &Arc<Self>, taken: Taken) -> Record<Arc<Consumer>> {
        self.seat.holds(1);
        Record { consumer: self.clone(), taken: Some(taken) }
    }

    /// What there is, at most `most`, one of each lane in turn.
    pub(super) fn try_take_many(&self, owner: Owner, most: usize) -> Result<Vec<Taken>> {
        let (mut turns, mut several_lanes) = (Vec::new(), false);
        if most == 0 {
            return Ok(Vec::new());
        }
        let first = self.turn.load(Ordering::Relaxed);
        let taken = self.records.protocol().try_take_many(owner, first, most, |turn, taken: Taken| {
            prefetch(self.records.data(taken.lane, taken.start, taken.bytes)); // Its counts are read next.
            several_lanes |=
                turns.first().is_some_and(|(_, first): &(usize, Taken)| first.lane != taken.lane);
            turns.push((turn, taken));
        });
        taken.map_err(|damage| self.report_damage(damage, first))?;
        if several_lanes {
            turns.sort_by_key(|(turn, _)| *turn); // Stable: within a turn the lanes keep their order.
        }
        if let Some((_, last)) = turns.last() {
            self.turn.store(last.lane + 1, Ordering::Relaxed);
        }
        Ok(turns.into_iter().map(|(_, taken)| taken).collect())
    }

    /// The error for a damaged lane. The next call begins behind it, so that the other lanes are read.
    #[cold]
    fn report_damage(&self, damage: Damage, turn: usize) -> Error {
        self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
        self.records.damaged(damage)
    }

    #[inline]
    fn take_raw(&self, deadline: Deadline) -> Result<Option<Taken>> {
        self.check_open()?;
        let owner = self.owner()?;
        if let Some(taken) = self.try_take(owner)? {
            return Ok(Some(taken));
        }
        if deadline == Deadline::Now {
            if self.records.is_closed() {
                return self.try_take(owner)?.map_or(Err(Error::Closed), |taken| Ok(Some(taken))); // What was committed before it.
            }
            if !self.ticker.is_due() {
                return Ok(None);
            }
            self.poll_liveness();
            return self.try_take(owner);
        }
        if let Some(taken) = self.look_again(owner)? {
            return Ok(Some(taken));
        }
        let started = Instant::now();
        let waiting = self.seat.waits(Activity::WaitData);
        let taken = self.wait_for_record(owner, deadline)?;
        drop(waiting);
        self.records.protocol().control.wait.record(started.elapsed().as_nanos() as u64);
        Ok(Some(taken))
    }

    /// Looks a few times more, for what a busy producer is about to commit.
    fn look_again(&self, owner: Owner) -> Result<Option<Taken>> {
        let looks = self.eagerness.load(Ordering::Relaxed);
        if looks == 0 {
            return Ok(None);
        }
        let protocol = self.records.protocol();
        for _ in 0..looks {
            std::hint::spin_loop();
            if protocol.may_be_readable()
                && let Some(taken) = self.try_take(owner)?
            {
                self.eagerness.store((looks * 2).min(*LOOKS.end()), Ordering::Relaxed);
                return Ok(Some(taken));
            }
        }
        self.eagerness.store((looks / 2).max(*LOOKS.start()), Ordering::Relaxed);
        Ok(None)
    }

    fn wait_for_record(&self, owner: Owner, deadline: Deadline) -> Result<Taken> {
        let readable = &self.records.protocol().control.readable;
        let mut peer_watch = PeerWatch::with_timeout(self.peer_timeout);
        let take = || {
            self.check_open()?;
            let closed = self.records.is_closed();
            match self.try_take(owner)? {
                None if closed => Err(Error::Closed),
                taken => Ok(taken),
            }
        };
        let check = || {
            self.poll_liveness();
            self.check_producers(&mut peer_watch)
        };
        wait_for(readable, || readable.announce(), deadline, take, check)?.ok_or(Error::Timeout)
    }

    /// Sleeps until there is a record (or the records or this handle are closed), and takes nothing: for event
    /// loops, which then try. False when the time was over first.
    pub fn wait_readable(&self, deadline: Deadline) -> Result<bool> {
        self.owner()?;
        let protocol = self.records.protocol();
        let readable = &protocol.control.readable;
        let look = || {
            let ready = protocol.has_ready().map_err(|damage| self.records.damaged(damage))?;
            Ok((ready || self.records.is_closed() || self.check_open().is_err()).then_some(()))
        };
        let check = || {
            self.poll_liveness();
            Ok(())
        };
        let _waiting = self.seat.waits(Activity::WaitData);
        Ok(wait_for(readable, || readable.announce(), deadline, look, check)?.is_some())
    }

    /// Leaves, and ends the calls that wait with this handle, in whichever thread. The last living consumer takes the name
    /// away and shuts the records down.
    pub fn close(&self) -> Result<()> {
        self.seat.close(|| self.records.shut_down(), || self.end_calls())
    }

    /// Leaves without shutting anything down, also as the last: the name stays for the next learner, until it is collected.
    pub fn leave(&self) {
        self.seat.leave(|| self.end_calls());
    }

    /// Ends as if this process had been killed: what was committed stays for the next learner, also what this one holds.
    /// Without records or workers, the name goes; without a name that can be found again, this is [`close`](Self::close).
    pub fn abandon(this: Arc<Consumer>) -> Result<()> {
        Self::abandon_with(this, || ())
    }

    /// As [`abandon`](Self::abandon). `let_go` drops what else keeps this handle: its records are given back.
    pub fn abandon_with(this: Arc<Consumer>, let_go: impl FnOnce()) -> Result<()> {
        let left = this.seat.abandon(|| this.records.shut_down(), || this.end_calls())?;
        let_go();
        drop(this);
        left.map_or(Ok(()), |name| catalog::collect_unless(&name, Records::holds_data).map(drop))
    }

    pub(super) fn poll_liveness(&self) {
        super::poll_liveness(&self.recovered, &self.records, &self.seat);
    }

    fn end_calls(&self) {
        // A thread that announced itself before this wakes; one that does so later sees the flag (SYNC event.ticket).
        self.records.protocol().control.readable.notify();
    }

    /// An error when this handle was closed, but not the records: the rest is for the others. After a shutdown it may be taken.
    #[inline]
    fn check_open(&self) -> Result<()> {
        self.seat.check_open(|| self.records.is_closed())
    }

    /// An error when no producer is left, and none came in time.
    pub fn check_producers(&self, watch: &mut PeerWatch) -> Result<()> {
        self.seat.check_producers(watch, "record", String::new)
    }

    /// Living producers, and the pids of those that died without closing.
    pub fn producers(&self) -> Census {
        self.seat.census(Role::Producer)
    }
}

impl Drop for Consumer {
    /// As [`close`](Consumer::close), without its error.
    fn drop(&mut self) {
        let _ = self.close();
    }
}

/// What is known about a record besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordInfo {
    pub stamp: Stamp,
    /// CLOCK_MONOTONIC at the commit.
    pub committed_ns: u64,
    pub lane: usize,
    /// Of the lane's records, in the order in which they were reserved.
    pub number: u64,
}

/// A record in a consumer's hands. Dropping it gives the room back, or the record if the consumer was abandoned.
#[derive(Debug)]
pub struct Record<C: Deref<Target = Consumer>> {
    consumer: C,
    taken: Option<Taken>,
}

impl<C: Deref<Target = Consumer>> Record<C> {
    fn taken(&self) -> &Taken {
        self.taken.as_ref().expect("a record is taken until it is released")
    }

    #[allow(clippy::len_without_is_empty)] // Nothing asks.
    pub fn len(&self) -> usize {
        self.taken().bytes
    }

    /// Where it lies, at a multiple of 64; valid to read until release, and mapped as long as the segment is.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        let TakenRecord { lane, start, bytes, .. } = **self.taken();
        self.consumer.records.data(lane, start, bytes)
    }

    /// Its bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the record is ours until release: its writer is done (I2), none writes before that (I6), and its place was
        // checked against what exists of the lane.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    pub fn info(&self) -> RecordInfo {
        let TakenRecord { lane, number, .. } = **self.taken();
        let entry = self.consumer.records.protocol().lane(lane).entry(number);
        RecordInfo { stamp: entry.stamp, committed_ns: entry.committed_ns, lane, number }
    }

    pub fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    /// Notes the number under which a forwarder sends it.
    pub(super) fn note_sent(&self, sent_as: u64) {
        let taken = self.taken();
        self.consumer.records.protocol().lane(taken.lane).note_sent(taken, sent_as);
    }

    /// Notes how long the record waited to be taken.
    pub fn record_dwell(&self, info: &RecordInfo) {
        let dwell = monotonic_ns().saturating_sub(info.committed_ns);
        self.consumer.records.protocol().control.dwell.record(dwell);
    }

    /// Puts it back unread, for the next consumer.
    pub fn give_back(mut self) {
        if let Some(taken) = self.take_if_ours() {
            self.consumer.records.protocol().lane(taken.lane).give_back(taken);
        }
    }

    /// `None` in a forked child: the record is its parent's.
    fn take_if_ours(&mut self) -> Option<Taken> {
        let taken = self.taken.take().filter(|taken| self.consumer.seat.owner() == Some(taken.owner))?;
        self.consumer.seat.let_go(1);
        Some(taken)
    }
}

impl<C: Deref<Target = Consumer>> Drop for Record<C> {
    fn drop(&mut self) {
        if let Some(taken) = self.take_if_ours() {
            let lane = self.consumer.records.protocol().lane(taken.lane);
            if self.consumer.seat.is_abandoned() { lane.give_back(taken) } else { lane.release(taken) }
        }
    }
}

/// What the affinity and the control group leave to this process.
fn has_several_cores() -> bool {
    std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1)
}
