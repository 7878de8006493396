//! A producer: owns a lane, reserves room in it, lets the caller write there, commits it.

use super::layout::ALIGN;
use super::ledger::{Attempt, Ledger, ReserveError, Room};
use super::protocol::{Entry, LaneWords, Stamp};
use super::recovery::RecoveredSeats;
use super::{Deadline, OnFull, ProducerSpec, Records};
use crate::error::{Error, Result};
use crate::segment::header::PAGE;
use crate::segment::{Activity, Census, Owner, PeerWatch, Role, Seat};
use crate::sys::clock::monotonic_ns;
use crate::sys::fork;
use crate::sys::sync::{AtomicU64, Ordering, Point, crash_point};
use crate::sys::wait::{LivenessTicker, wait_for};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

pub mod delivery;
pub(crate) mod run;

/// A lane grows by a thirty-second of what there is of it, and by this much at least and at most: the last step costs a large
/// lane little memory, and a small one few system calls.
const STEPS: std::ops::RangeInclusive<usize> = 32 << 10..=1 << 20;

/// What the caller says about a record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Label {
    /// Of the weights that it was made with.
    pub version: u32,
    /// What it is: data, tombstone, …
    pub kind: u32,
    /// Which producer made it, and its number there; `None`: this producer, and the next.
    pub origin: Option<(u32, u64)>,
}

/// One producer's handle. Threads may share it, and have several reservations open at once.
#[derive(Debug)]
pub struct Producer {
    records: Arc<Records>,
    seat: Seat,
    process_lane: ProcessLane,
    joining: fork::ForkSafeLock,
    /// The id that the caller brought.
    chosen_id: Option<u32>,
    on_full: OnFull,
    peer_timeout: Option<Duration>,
    recovered: Mutex<RecoveredSeats>,
    ticker: LivenessTicker,
}

/// What one process has of a producer. A forked child has its own, behind its parent's, and never takes a lock of its parent's.
#[derive(Debug)]
struct ProcessLane {
    generation: u32,
    owner: Owner,
    lane: usize,
    ledger: Mutex<Ledger>,
    /// Open reservations, and [`CLOSING`].
    open: AtomicU64,
    producer_id: u32,
    sequence: AtomicU64,
    child: OnceLock<Box<ProcessLane>>,
}

/// The handle is closed; the last reservation leaves the lane.
const CLOSING: u64 = 1 << 63;

impl ProcessLane {
    /// Takes a lane and opens it.
    fn begin(records: &Records, seat: &Seat, owner: Owner, chosen_id: Option<u32>) -> Result<ProcessLane> {
        let mut refusal = None;
        let taken = Self::take_lane(records, seat, owner, &mut refusal);
        let (lane, ledger) = taken.ok_or_else(|| {
            let (name, lanes) = (records.segment().name().to_owned(), records.geometry.lanes);
            refusal.unwrap_or(Error::NoLane { name, lanes })
        })?;
        Ok(ProcessLane {
            generation: fork::generation(),
            owner,
            lane,
            ledger: Mutex::new(ledger),
            open: AtomicU64::new(0),
            producer_id: chosen_id.unwrap_or_else(|| records.next_producer_id()),
            sequence: AtomicU64::new(0),
            child: OnceLock::new(),
        })
    }

    /// Takes the first lane that can be opened. One that cannot, for it is damaged or there is no memory for its table, is
    /// passed: `refusal` says why the first of them was. It stays ours until we have another, or we would find it again.
    fn take_lane(
        records: &Records,
        seat: &Seat,
        owner: Owner,
        refusal: &mut Option<Error>,
    ) -> Option<(usize, Ledger)> {
        let protocol = records.protocol();
        let lane = protocol.lane(protocol.take_lane(owner, |other| !seat.is_alive(other))?);
        match Self::open_lane(records, &lane, owner) {
            Ok(ledger) => Some((lane.index, ledger)),
            Err(error) => {
                refusal.get_or_insert(error);
                let next = Self::take_lane(records, seat, owner, refusal);
                lane.leave_lane(owner);
                next
            }
        }
    }

    /// Makes the table of a lane exist, if the lane had no owner before, and rebuilds its ledger.
    fn open_lane(records: &Records, lane: &LaneWords<'_>, owner: Owner) -> Result<Ledger> {
        let protocol = records.protocol();
        if protocol.existing_lane(lane.index).is_none() {
            let (offset, bytes) = records.geometry.table(lane.index);
            records.segment().grow(offset, bytes)?;
            crash_point(Point::LaneGrown);
        }
        protocol.open_lane(lane.index);
        Ledger::rebuild(lane, owner).map_err(|damage| records.damaged(damage))
    }

    /// This process's own, or the last one before it.
    #[inline]
    fn latest(&self) -> &ProcessLane {
        let mut process_lane = self;
        while let Some(child) = process_lane.child.get() {
            process_lane = child;
        }
        process_lane
    }

    /// What is written beside a record.
    #[inline]
    fn stamp(&self, label: Label) -> Stamp {
        let next = || (self.producer_id, self.sequence.fetch_add(1, Ordering::Relaxed));
        let (producer_id, sequence) = label.origin.unwrap_or_else(next);
        Stamp { version: label.version, kind: label.kind, producer_id, sequence }
    }

    #[inline]
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Producer {
    /// Attaches to named records.
    pub fn attach(name: &str, schema: &[u8], spec: ProducerSpec) -> Result<Producer> {
        let records = Records::open(name, Some(schema))?;
        if records.is_closed() {
            return Err(Error::Closed);
        }
        Producer::attach_to(Arc::new(records), spec)
    }

    /// Sits down beside others on open records, and takes a lane.
    pub fn attach_to(records: Arc<Records>, spec: ProducerSpec) -> Result<Producer> {
        Producer::attach_as(Role::Producer, records, spec)
    }

    /// As [`attach_to`](Self::attach_to). `role`: [`Role::Producer`], or [`Role::Network`] for what remote workers send.
    pub fn attach_as(role: Role, records: Arc<Records>, spec: ProducerSpec) -> Result<Producer> {
        let seat = Seat::take(records.segment().clone(), role, |seat| records.sweep(seat))?;
        let owner = seat.owner().expect("we have just sat down, in this process");
        let process_lane = ProcessLane::begin(&records, &seat, owner, spec.producer_id)?;
        Ok(Producer {
            on_full: spec.on_full.unwrap_or(records.on_full),
            records,
            seat,
            process_lane,
            joining: fork::ForkSafeLock::default(),
            chosen_id: spec.producer_id,
            peer_timeout: spec.peer_timeout,
            recovered: Mutex::default(),
            ticker: LivenessTicker::default(),
        })
    }

    pub fn records(&self) -> &Arc<Records> {
        &self.records
    }

    pub fn seat(&self) -> &Seat {
        &self.seat
    }

    /// Living consumers, and the pids of those that died without closing.
    pub fn consumers(&self) -> Census {
        self.seat.census(Role::Consumer)
    }

    /// Whether no consumer lives, one of them died, and none can come, because the name is gone. A consumer that died after it had
    /// shut the records down has closed them.
    pub fn is_orphaned(&self) -> bool {
        self.seat.all_died_for_good(Role::Consumer) && !self.records.is_closed()
    }

    /// An error when no learner is left to make room, and none came in time, or none can come.
    pub fn check_learners(&self, watch: &mut PeerWatch) -> Result<()> {
        let waiting = || format!("{} records", self.records.census().ready_records);
        self.seat.check_learners(watch, self.is_orphaned(), waiting)
    }

    /// The name on its records. A forked child gets another with its first record, unless the caller brought one.
    pub fn producer_id(&self) -> u32 {
        self.process_lane.latest().producer_id
    }

    /// A number that no other producer of these records has, for a client whose records will be committed here.
    pub fn next_producer_id(&self) -> u32 {
        self.records.next_producer_id()
    }

    /// Records committed through this handle, in its own name.
    pub fn sent(&self) -> u64 {
        self.process_lane.latest().sequence.load(Ordering::Relaxed)
    }

    pub fn on_full(&self) -> OnFull {
        self.on_full
    }

    /// The owner of reservations through this handle. A forked child sits down anew.
    pub fn owner(&self) -> Result<Owner> {
        Ok(self.process_lane()?.owner)
    }

    /// Which lane it writes to.
    pub fn lane(&self) -> usize {
        self.process_lane.latest().lane
    }

    /// The lane of this process, if it has one.
    #[inline]
    fn here(&self) -> Option<&ProcessLane> {
        let process_lane = self.process_lane.latest();
        (process_lane.generation == fork::generation()).then_some(process_lane)
    }

    #[inline]
    fn process_lane(&self) -> Result<&ProcessLane> {
        match self.here() {
            Some(process_lane) => Ok(process_lane),
            None => self.rejoin(),
        }
    }

    /// In a forked child: sits down anew, as a producer of its own with its own lane and count.
    #[cold]
    fn rejoin(&self) -> Result<&ProcessLane> {
        let _joining = self.joining.take(fork::Rank::ProcessLane);
        if let Some(process_lane) = self.here() {
            return Ok(process_lane);
        }
        let owner = self.seat.rejoin(|seat| self.records.sweep(seat))?;
        let process_lane = Box::new(ProcessLane::begin(&self.records, &self.seat, owner, self.chosen_id)?);
        // No fork in between: the child would inherit a cell that no thread of it fills.
        Ok(fork::without_fork(|| self.process_lane.latest().child.get_or_init(|| process_lane)))
    }

    /// Reserves room for a record of up to `bytes`. `None`: dropped, as the policy says. [`Error::Full`] when there is no
    /// room, and the policy is to say so, or to wait, and the deadline is now. [`Error::NoMemory`] or [`Error::NoRam`] when the lane
    /// could not grow, and no room came back in time.
    #[inline]
    pub fn reserve<P: Deref<Target = Producer>>(
        this: P,
        bytes: usize,
        deadline: Deadline,
    ) -> Result<Option<Reservation<P>>> {
        Self::hold(this, |producer, process_lane| {
            let room = producer.find_room(process_lane, bytes, deadline)?;
            if room.is_none() {
                producer.count_newest(process_lane, 1);
            }
            Ok(room)
        })
    }

    /// As [`reserve`](Self::reserve) with no wait, for a caller that decides later whether the record is dropped: `None`
    /// is not counted.
    pub fn reserve_uncounted<P: Deref<Target = Producer>>(
        this: P,
        bytes: usize,
    ) -> Result<Option<Reservation<P>>> {
        Self::hold(this, |producer, process_lane| producer.find_room(process_lane, bytes, Deadline::Now))
    }

    /// Reserves free room, now. [`Error::Full`] when there is none, whatever the policy is: nothing is dropped.
    pub fn reserve_free<P: Deref<Target = Producer>>(this: P, bytes: usize) -> Result<Reservation<P>> {
        Self::hold(this, |producer, process_lane| producer.find_free_room(process_lane, bytes))?
            .ok_or(Error::Full)
    }

    /// Counts records that were dropped because there was no room for them.
    pub fn count_dropped(&self, records: u64) -> Result<()> {
        self.count_newest(self.process_lane()?, records);
        Ok(())
    }

    /// Keeps the lane for a reservation, for as long as there is one.
    #[inline]
    fn hold<P: Deref<Target = Producer>>(
        this: P,
        find: impl FnOnce(&Producer, &ProcessLane) -> Result<Option<Room>>,
    ) -> Result<Option<Reservation<P>>> {
        let process_lane = this.process_lane()?;
        if process_lane.open.fetch_add(1, Ordering::Relaxed) & CLOSING != 0 {
            this.done(process_lane);
            return Err(Error::Closed);
        }
        let room = find(&this, process_lane);
        if !matches!(room, Ok(Some(_))) {
            this.done(process_lane);
        }
        Ok(room?.map(|room| Reservation { producer: this, room: Some(room) }))
    }

    /// A reservation is over.
    #[inline]
    fn done(&self, process_lane: &ProcessLane) {
        // SYNC records.open: AcqRel here and in `close`. The lane is left after every commit and abort in it.
        if process_lane.open.fetch_sub(1, Ordering::AcqRel) == CLOSING | 1 {
            self.leave(process_lane);
        }
    }

    /// Room, as the policy says. `None`: the record is to be dropped, and counted.
    #[inline]
    fn find_room(
        &self,
        process_lane: &ProcessLane,
        bytes: usize,
        deadline: Deadline,
    ) -> Result<Option<Room>> {
        match self.try_open(process_lane, bytes)? {
            Attempt::Room(room) => Ok(Some(room)),
            full => self.find_room_in_full_lane(process_lane, bytes, deadline, full),
        }
    }

    /// Room that is free, or that the dead have left. `None`: there is none.
    fn find_free_room(&self, process_lane: &ProcessLane, bytes: usize) -> Result<Option<Room>> {
        let mut attempt = self.try_open(process_lane, bytes)?;
        if !matches!(attempt, Attempt::Room(_)) && self.ticker.is_due() {
            self.poll_liveness();
            attempt = self.try_reserve(process_lane, bytes)?;
        }
        Ok(attempt.room())
    }

    /// Tries to reserve, unless the records are closed or the record is too large.
    #[inline]
    fn try_open(&self, process_lane: &ProcessLane, bytes: usize) -> Result<Attempt> {
        self.check_size(bytes)?;
        if self.records.protocol().control.closed.seems_set() {
            return Err(Error::Closed);
        }
        self.try_reserve(process_lane, bytes)
    }

    /// An error for a record of more bytes than a lane has.
    pub fn check_size(&self, bytes: usize) -> Result<()> {
        let lane_bytes = self.records.geometry.lane_bytes;
        if bytes > lane_bytes {
            return Err(Error::RecordTooLarge { bytes: bytes as u64, lane_bytes: lane_bytes as u64 });
        }
        Ok(())
    }

    #[inline]
    fn try_reserve(&self, process_lane: &ProcessLane, bytes: usize) -> Result<Attempt> {
        let lane = self.lane_of(process_lane);
        let attempt =
            process_lane.ledger().try_reserve(&lane, bytes, |from, to| self.grow(lane.index, from, to));
        attempt.map_err(|error| self.reserve_error(error))
    }

    #[inline]
    fn lane_of(&self, process_lane: &ProcessLane) -> LaneWords<'_> {
        self.records.protocol().lane(process_lane.lane)
    }

    fn reserve_error(&self, error: ReserveError) -> Error {
        match error {
            ReserveError::Damage(damage) => self.records.damaged(damage),
            ReserveError::Growth(error) => error,
        }
    }

    /// Makes more of the lane exist, at least up to `to`: a step if there is memory for it, otherwise what is needed.
    #[cold]
    fn grow(&self, lane: usize, from: usize, to: usize) -> Result<usize> {
        let geometry = &self.records.geometry;
        let needed = to.next_multiple_of(PAGE).min(geometry.lane_bytes);
        let step = (from / 32).next_multiple_of(PAGE).clamp(*STEPS.start(), *STEPS.end());
        let step = needed.max(from.saturating_add(step).min(geometry.lane_bytes));
        let offset = geometry.lane_offset(lane) + from;
        let segment = self.records.segment();
        match segment.grow(offset, step - from) {
            Ok(()) => Ok(step),
            Err(Error::NoMemory { .. } | Error::NoRam { .. }) if needed < step => {
                segment.grow(offset, needed - from).map(|()| needed)
            }
            Err(error) => Err(error),
        }
    }

    #[cold]
    fn find_room_in_full_lane(
        &self,
        process_lane: &ProcessLane,
        bytes: usize,
        deadline: Deadline,
        full: Attempt,
    ) -> Result<Option<Room>> {
        let waits = self.on_full == OnFull::Block && deadline != Deadline::Now;
        if !waits && self.ticker.is_due() {
            self.poll_liveness(); // Blocking callers run recovery in their own wait loop.
            if let Attempt::Room(room) = self.try_reserve(process_lane, bytes)? {
                return Ok(Some(room));
            }
        }
        match self.on_full {
            OnFull::Block => self.wait_for_room(process_lane, bytes, deadline).map(Some),
            OnFull::Error => Err(self.refusal_or(process_lane, Error::Full)),
            OnFull::DropNewest => Ok(None),
            OnFull::DropOldest => {
                let mut attempt = full;
                if process_lane.ledger().can_make_room(&self.lane_of(process_lane), bytes) {
                    while attempt == Attempt::Unread && self.drop_oldest(process_lane)? {
                        attempt = self.try_reserve(process_lane, bytes)?;
                    }
                }
                Ok(attempt.room()) // Without any, what is left is being read, or being written.
            }
        }
    }

    #[cold]
    fn count_newest(&self, process_lane: &ProcessLane, records: u64) {
        self.lane_of(process_lane).line.write.dropped_newest.fetch_add(records, Ordering::Relaxed);
    }

    fn drop_oldest(&self, process_lane: &ProcessLane) -> Result<bool> {
        let dropped = process_lane.ledger().drop_oldest(&self.lane_of(process_lane));
        dropped.map_err(|damage| self.records.damaged(damage))
    }

    fn wait_for_room(&self, process_lane: &ProcessLane, bytes: usize, deadline: Deadline) -> Result<Room> {
        if deadline == Deadline::Now {
            return Err(Error::Full);
        }
        let lane = self.lane_of(process_lane);
        lane.line.write.blocked.fetch_add(1, Ordering::Relaxed);
        let mut peer_watch = PeerWatch::with_timeout(self.peer_timeout);
        let reserve = || {
            if self.records.is_closed() || process_lane.open.load(Ordering::Relaxed) & CLOSING != 0 {
                return Err(Error::Closed);
            }
            Ok(self.try_reserve(process_lane, bytes)?.room())
        };
        let check = || {
            self.poll_liveness();
            self.check_learners(&mut peer_watch)
        };
        let _waiting = self.seat.waits(Activity::WaitRoom);
        wait_for(&lane.line.room, || lane.announce_sleep(), deadline, reserve, check)?
            .ok_or_else(|| self.refusal_or(process_lane, Error::Timeout))
    }

    /// The error that ends a search for room: that the lane could not grow, or the caller's.
    fn refusal_or(&self, process_lane: &ProcessLane, otherwise: Error) -> Error {
        process_lane.ledger().take_refusal().unwrap_or(otherwise)
    }

    fn poll_liveness(&self) {
        super::poll_liveness(&self.recovered, &self.records, &self.seat);
    }

    /// Sleeps until there is room for `bytes` (or the records are closed), and reserves nothing: for event loops, which
    /// then try. False when the time was over first.
    pub fn wait_room(&self, bytes: usize, deadline: Deadline) -> Result<bool> {
        let process_lane = self.process_lane()?;
        self.check_size(bytes)?;
        let lane = self.lane_of(process_lane);
        let look = || {
            let is_time = self.records.is_closed() || self.has_room(process_lane, bytes)?;
            Ok(is_time.then_some(()))
        };
        let check = || {
            self.poll_liveness();
            Ok(())
        };
        let _waiting = self.seat.waits(Activity::WaitRoom);
        Ok(wait_for(&lane.line.room, || lane.announce_sleep(), deadline, look, check)?.is_some())
    }

    fn has_room(&self, process_lane: &ProcessLane, bytes: usize) -> Result<bool> {
        let lane = self.lane_of(process_lane);
        let has_room =
            process_lane.ledger().has_room(&lane, bytes, |from, to| self.grow(lane.index, from, to));
        has_room.map_err(|error| self.reserve_error(error))
    }

    /// The lane that a reservation belongs to; `None` in a forked child: it is its parent's.
    #[inline]
    fn process_lane_of(&self, room: &Room) -> Option<&ProcessLane> {
        self.here().filter(|process_lane| process_lane.owner == room.claim.owner)
    }

    /// Stamps and publishes a record. Its bytes are written.
    #[inline]
    fn commit(&self, process_lane: &ProcessLane, room: Room, used: usize, label: Label) {
        let lane = self.lane_of(process_lane);
        if Ledger::leaves_room(&room, used) {
            process_lane.ledger().trim(&lane, &room, used);
        }
        let stamp = process_lane.stamp(label);
        let (start, bytes, committed_ns) = (room.start as u64, used as u64, monotonic_ns());
        self.seat.note_commit(1, committed_ns, label.version);
        lane.commit(room.claim, &Entry { start, bytes, stamp, committed_ns });
        self.done(process_lane);
    }

    /// Adds a copy that took `ns`, and stands for `of` copies like it, to the time that this producer copies.
    pub fn note_copy(&self, ns: u64, of: u64, bytes: usize) {
        self.seat.record().account.note_copy(ns, of, bytes);
    }

    fn abort(&self, process_lane: &ProcessLane, room: Room) {
        process_lane.ledger().abort(&self.lane_of(process_lane), room.claim);
        self.done(process_lane);
    }

    /// Gives the lane back. What was committed stays to be read; what is reserved may still be committed.
    pub fn close(&self) {
        let Some(process_lane) = self.here() else { return }; // A forked child that sent nothing: the lane is its parent's.
        // SYNC records.open: AcqRel here and in `done`.
        if process_lane.open.fetch_or(CLOSING, Ordering::AcqRel) == 0 {
            self.leave(process_lane);
        }
        self.lane_of(process_lane).line.room.notify(); // Other threads may wait with this handle.
    }

    /// Gives the seat back, for a handle that is kept after it was closed. Nothing is reserved through it any more.
    pub fn vacate(&self) {
        self.seat.vacate();
    }

    fn leave(&self, process_lane: &ProcessLane) {
        self.lane_of(process_lane).leave_lane(process_lane.owner);
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.close();
    }
}

/// Room for one record. Dropping it gives it back.
#[derive(Debug)]
pub struct Reservation<P: Deref<Target = Producer>> {
    producer: P,
    room: Option<Room>,
}

impl<P: Deref<Target = Producer>> Reservation<P> {
    fn room(&self) -> &Room {
        self.room.as_ref().expect("a reservation has its room until it is committed or dropped")
    }

    /// How many bytes there are to write.
    #[allow(clippy::len_without_is_empty)] // Nothing asks.
    pub fn len(&self) -> usize {
        self.room().bytes
    }

    /// Where to write them, at a multiple of 64; writable until commit.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        let Room { claim, start, bytes } = self.room();
        debug_assert!(start.is_multiple_of(ALIGN));
        self.producer.records.data(claim.lane, *start, *bytes)
    }

    /// The bytes to write. What is in them is whatever was there before.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the room is ours alone until it is committed (I2, I6), it exists, and `&mut self` borrows it once.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len()) }
    }

    pub fn producer(&self) -> &Producer {
        &self.producer
    }

    /// Publishes the first `used` bytes. The rest goes back to the lane.
    pub fn commit(mut self, used: usize, label: Label) -> Result<()> {
        let room = self.room();
        if used > room.bytes {
            let range = format!("at most the {} bytes that were reserved", room.bytes);
            return Err(Error::out_of_range("bytes of the record", used, range));
        }
        let Some(process_lane) = self.producer.process_lane_of(room) else {
            let seat = &self.producer.records.segment().seats()[room.claim.owner.seat()];
            return Err(Error::Forked { what: "reservation", owner: seat.pid.load(Ordering::Relaxed) });
        };
        if let Some(room) = self.room.take() {
            self.producer.commit(process_lane, room, used, label);
        }
        Ok(())
    }
}

impl<P: Deref<Target = Producer>> Drop for Reservation<P> {
    fn drop(&mut self) {
        if let Some(room) = self.room.take()
            && let Some(process_lane) = self.producer.process_lane_of(&room)
        {
            self.producer.abort(process_lane, room);
        }
    }
}
