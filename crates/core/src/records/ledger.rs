//! What the producer of a lane keeps to itself: which bytes of the lane are free, and which of its records still have some.
//!
//! Nothing of it is shared, and nothing of it must survive: the next owner of the lane rebuilds it from the table.
//! It runs over the [`protocol`](super::protocol) alone, so loom and the property tests run it, too.
//!
//! *Sweeping* the list of records that are out finds those that were released. That is done when `released` has moved by an
//! eighth of their number, so that it costs a few words for each record; and always when there is no room.

use super::allocator::{Allocator, Extent};
use super::layout::{State, Word};
use super::protocol::{Claim, LaneWords, NextNumber};
use crate::error::{Damage, Error, Result};
use crate::segment::Owner;
use crate::sys::sync::{Ordering, Point, crash_point};

/// Room for a record that is being written.
#[must_use = "its room stays taken until its claim is committed or aborted"]
#[derive(Debug, PartialEq, Eq)]
pub struct Room {
    pub claim: Claim,
    /// Where it starts in the lane's data.
    pub start: usize,
    /// What was asked for.
    pub bytes: usize,
}

/// What came of asking for room.
#[derive(Debug, PartialEq, Eq)]
pub enum Attempt {
    Room(Room),
    /// There is none, and a record that no consumer has taken could be dropped for it.
    Unread,
    /// There is none.
    Full,
}

impl Attempt {
    /// The room, if there is any.
    pub fn room(self) -> Option<Room> {
        match self {
            Attempt::Room(room) => Some(room),
            Attempt::Unread | Attempt::Full => None,
        }
    }
}

/// Why no attempt could be made.
#[derive(Debug)]
pub enum ReserveError {
    Damage(Damage),
    /// The lane has to grow, cannot, and nothing is out that could come back.
    Growth(Error),
}

impl From<Damage> for ReserveError {
    fn from(damage: Damage) -> ReserveError {
        ReserveError::Damage(damage)
    }
}

/// The private ledger of one lane.
#[derive(Debug)]
pub struct Ledger {
    lane: usize,
    owner: Owner,
    allocator: Allocator,
    /// By descriptor: the room of its record. Empty when it has none.
    extents: Box<[Extent]>,
    /// By descriptor: whether it is in `out`.
    listed: Box<[bool]>,
    /// Descriptors whose records may have room.
    out: Vec<u32>,
    /// `released` at the last sweep.
    swept_at: u64,
    /// Why the lane could not grow, if that was what the last attempt failed for.
    refusal: Option<Error>,
}

impl Ledger {
    /// Rebuilds the ledger of a lane that `owner` has just taken: frees what its last owner had reserved, and finds the room
    /// of what is there to be read. Records that overlap, or lie outside, are damage.
    pub fn rebuild(lane: &LaneWords<'_>, owner: Owner) -> Result<Ledger, Damage> {
        lane.clear_reserved(owner);
        let depth = lane.table.len();
        let mut ledger = Ledger {
            lane: lane.index,
            owner,
            allocator: Allocator::new(lane.lane_bytes),
            extents: vec![Extent::default(); depth].into(),
            listed: vec![false; depth].into(),
            out: Vec::new(),
            swept_at: lane.line.free.released.load(Ordering::Relaxed),
            refusal: None,
        };
        lane.grown()?;
        for (index, descriptor) in lane.table.iter().enumerate() {
            // SYNC records.ready: Acquire here, Release in `make_ready`.
            let word = Word::unpack(descriptor.word.load(Ordering::Acquire));
            if !matches!(word.state, State::Ready | State::Taken) {
                continue;
            }
            if word.number as usize & (depth - 1) != index {
                return Err(Damage("a record is in a descriptor that is not its own"));
            }
            let (start, bytes) = lane.place(descriptor)?;
            let extent = super::allocator::rounded(bytes)
                .map(|len| Extent { start, len })
                .filter(|&extent| ledger.allocator.claim(extent))
                .ok_or(Damage("two records of a lane overlap"))?;
            ledger.list(index, extent);
        }
        Ok(ledger)
    }

    pub fn lane(&self) -> usize {
        self.lane
    }

    pub fn owner(&self) -> Owner {
        self.owner
    }

    fn list(&mut self, index: usize, extent: Extent) {
        self.extents[index] = extent;
        if !self.listed[index] {
            self.listed[index] = true;
            self.out.push(index as u32);
        }
    }

    /// Reserves a record of up to `bytes`. `grow(from, to)` makes more of the lane exist, and says how far.
    #[inline]
    pub fn try_reserve(
        &mut self,
        lane: &LaneWords<'_>,
        bytes: usize,
        grow: impl FnOnce(usize, usize) -> Result<usize>,
    ) -> Result<Attempt, ReserveError> {
        let released = lane.line.free.released.load(Ordering::Relaxed).wrapping_sub(self.swept_at);
        if released as usize > self.out.len() / 8 {
            self.sweep(lane);
        }
        let mut found = self.find_room(lane, bytes);
        if found.is_none() {
            self.sweep(lane);
            found = self.find_room(lane, bytes);
        }
        self.refusal = None;
        let Some((number, extent)) = found else {
            // To drop an unread record helps only where it is in the way.
            return match lane.next_number() {
                NextNumber::None => Ok(Attempt::Full),
                NextNumber::Lost => {
                    Err(Damage("the head of a lane is ahead of records that were not taken").into())
                }
                NextNumber::Unread | NextNumber::Number(_) => Ok(Attempt::Unread),
            };
        };
        let (number, extent) = match Self::ensure_grown(lane, extent, grow) {
            Ok(()) => (number, extent),
            Err(ReserveError::Growth(refusal)) => {
                self.allocator.release(extent);
                match self.find_grown_room(lane, bytes)? {
                    Some(found) => found,
                    // Room will come back, and the lane goes on at its present size.
                    None if !self.out.is_empty() => {
                        self.refusal = Some(refusal);
                        return Ok(Attempt::Unread);
                    }
                    None => return Err(ReserveError::Growth(refusal)),
                }
            }
            Err(error) => {
                self.allocator.release(extent);
                return Err(error);
            }
        };
        self.list(lane.index_of(number), extent);
        let claim = lane.reserve(number, self.owner);
        Ok(Attempt::Room(Room { claim, start: extent.start, bytes }))
    }

    /// Why there was no room, if it was not that the lane is full, but that there is no memory for the rest of it.
    pub fn take_refusal(&mut self) -> Option<Error> {
        self.refusal.take()
    }

    /// Whether [`try_reserve`](Self::try_reserve) would find room now. It makes it exist, and takes nothing.
    pub fn has_room(
        &mut self,
        lane: &LaneWords<'_>,
        bytes: usize,
        grow: impl FnOnce(usize, usize) -> Result<usize>,
    ) -> Result<bool, ReserveError> {
        self.sweep(lane);
        let Some((_, extent)) = self.find_room(lane, bytes) else { return Ok(false) };
        let grown = Self::ensure_grown(lane, extent, grow);
        self.allocator.release(extent);
        match grown {
            Ok(()) => Ok(true),
            Err(ReserveError::Growth(_)) if !self.out.is_empty() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A number and room. The room of the record that had the descriptor before is free by now.
    #[inline]
    fn find_room(&mut self, lane: &LaneWords<'_>, bytes: usize) -> Option<(u64, Extent)> {
        let NextNumber::Number(number) = lane.next_number() else { return None };
        self.reclaim(lane.index_of(number));
        let extent = self.allocator.allocate(bytes)?;
        Some((number, extent))
    }

    /// Room in what there is of the lane, where there will be no more of it: what was released may be enough.
    #[cold]
    fn find_grown_room(
        &mut self,
        lane: &LaneWords<'_>,
        bytes: usize,
    ) -> Result<Option<(u64, Extent)>, Damage> {
        self.sweep(lane);
        let grown = lane.grown()?;
        let Some((number, extent)) = self.find_room(lane, bytes) else { return Ok(None) };
        if extent.end() <= grown {
            return Ok(Some((number, extent)));
        }
        self.allocator.release(extent);
        Ok(None)
    }

    #[inline]
    fn ensure_grown(
        lane: &LaneWords<'_>,
        extent: Extent,
        grow: impl FnOnce(usize, usize) -> Result<usize>,
    ) -> Result<(), ReserveError> {
        let grown = lane.grown()?;
        if extent.end() <= grown {
            return Ok(());
        }
        let grown = grow(grown, extent.end()).map_err(ReserveError::Growth)?;
        crash_point(Point::LaneGrown);
        lane.line.write.grown.store(grown as u64, Ordering::Relaxed); // Before the first record in there is Ready (I2).
        Ok(())
    }

    /// Takes back the room of a descriptor's record, which is over.
    #[inline]
    fn reclaim(&mut self, index: usize) {
        self.allocator.release(std::mem::take(&mut self.extents[index]));
    }

    /// Takes back the room of all that was released.
    fn sweep(&mut self, lane: &LaneWords<'_>) {
        self.swept_at = lane.line.free.released.load(Ordering::Relaxed);
        let Ledger { allocator, extents, listed, out, .. } = self;
        out.retain(|&index| {
            let index = index as usize;
            // SYNC records.free: Acquire here, Release in `release`. Its reader is done (I6).
            let word = Word::unpack(lane.table[index].word.load(Ordering::Acquire));
            let out = word.state != State::Free;
            if !out {
                allocator.release(std::mem::take(&mut extents[index]));
                listed[index] = false;
            }
            out
        });
    }

    /// Whether a record that uses less of its room than was asked for leaves any to be taken back.
    #[inline]
    pub fn leaves_room(room: &Room, used: usize) -> bool {
        super::allocator::rounded(used) != super::allocator::rounded(room.bytes)
    }

    /// Takes back the end of a record's room, before it is committed.
    pub fn trim(&mut self, lane: &LaneWords<'_>, room: &Room, used: usize) {
        let extent = &mut self.extents[lane.index_of(room.claim.number)];
        let Some(kept) = super::allocator::rounded(used).filter(|&kept| kept < extent.len) else { return };
        let rest = Extent { start: extent.start + kept, len: extent.len - kept };
        *extent = if kept == 0 { Extent::default() } else { Extent { start: extent.start, len: kept } };
        self.allocator.release(rest);
    }

    /// Gives a reservation back.
    pub fn abort(&mut self, lane: &LaneWords<'_>, claim: Claim) {
        self.reclaim(lane.index_of(claim.number));
        lane.abort(claim);
    }

    /// Whether there could be room if nothing were left that can be dropped: what is being read or written stays.
    pub fn can_make_room(&self, lane: &LaneWords<'_>, bytes: usize) -> bool {
        let state = |index: usize| match Word::unpack(lane.table[index].word.load(Ordering::Relaxed)).state {
            State::Ready if lane.table[index].sent_as().is_some() => State::Taken, // It is not dropped (I5).
            state => state,
        };
        // Most often the oldest is where the cursor is, and as large.
        let oldest = lane.index_of(lane.line.read.cursor.load(Ordering::Relaxed));
        if state(oldest) == State::Ready && self.extents[oldest].len >= bytes {
            return true;
        }
        let out = self.out.iter().map(|&index| index as usize);
        let staying = out.filter(|&index| matches!(state(index), State::Taken | State::Reserved));
        let mut staying: Vec<Extent> = staying.map(|index| self.extents[index]).collect();
        staying.push(Extent { start: lane.lane_bytes, len: 0 });
        staying.sort_unstable_by_key(|extent| extent.start);
        let mut end = 0;
        staying.iter().any(|extent| {
            let gap = extent.start.saturating_sub(end);
            end = end.max(extent.end());
            gap >= bytes
        })
    }

    /// Drops the lane's oldest record that no consumer has taken; false when there is none.
    pub fn drop_oldest(&mut self, lane: &LaneWords<'_>) -> Result<bool, Damage> {
        let dropped = lane.drop_oldest()?;
        if let Some(number) = dropped {
            self.reclaim(lane.index_of(number));
        }
        Ok(dropped.is_some())
    }
}
