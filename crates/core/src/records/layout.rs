//! The bytes of records: where everything lies, and what the words say.
//!
//! ```text
//! body ┌──────────────────────────────────────────────────────────────────────────┐
//!      │ Control      closed, lanes_used │ readable event │ counters, forwarding… │
//!      ├──────────────────────────────────────────────────────────────────────────┤
//!      │ Lane × lanes (256 B)   the producer's line │ the readers' │ room event   │
//!      ├──────────────────────────────────────────────────────────────────────────┤
//!      │ SessionEntry × 1,024 (64 B)   id, next, log, holder                      │
//!      ├──────────────────────────────────────────────────────────────────────────┤
//!      │ Descriptor × lanes × descriptors (64 B)   word, place, stamp, sent       │
//! page ├──────────────────────────────────────────────────────────────────────────┤
//!      │ lane 0: lane_bytes of records, each at a multiple of 64                  │
//! page │ lane 1: …                                                                │
//!      └──────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Control, lanes and sessions exist from the start. The rest is sparse: the table of a lane exists once `tabled` says so, its data
//! up to `grown`.
//!
//! A record of a lane has a *number* that grows for ever, and lives in descriptor number mod descriptors. The words, from
//! the high bits down:
//!
//! | word | | | |
//! |---|---|---|---|
//! | descriptor | number (40) | Free, Reserved, Ready, Taken (2) | its producer or consumer; of a Ready one, whether it was given back (22) |
//! | owner of a lane | epoch (41) | whether it has an owner (1) | the owner (22) |
//!
//! Numbers are compared modulo 2⁴⁰: a record must not be held while 2⁴⁰ others pass (twelve days at a million records a
//! second).

use crate::error::{Error, Result};
use crate::policies::OnFull;
use crate::segment::Owner;
use crate::segment::forwarding::Forwarding;
use crate::segment::header::{GEOMETRY_WORDS, PAGE, geometry_words};
use crate::segment::histogram::Histogram;
use crate::segment::lease::OWNER_BITS;
use crate::segment::sessions::{SESSIONS, SessionEntry};
use crate::sys::sync::{AtomicU32, AtomicU64, ClosedFlag, EventCount};

/// The `kind` of a segment that holds records.
pub const KIND: u32 = 2;

/// Which number of the header is the policy.
pub(super) const ON_FULL_WORD: usize = 4;

/// Every record starts at a multiple of this, in its lane and in memory.
pub const ALIGN: usize = 64;

pub(super) const NUMBER_BITS: u32 = 40;
pub(super) const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
const STATE_SHIFT: u32 = OWNER_BITS;
const NUMBER_SHIFT: u32 = OWNER_BITS + 2;
const _: () = assert!(NUMBER_BITS + 2 + OWNER_BITS == 64);

/// What a descriptor word says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum State {
    /// Released, dropped or aborted.
    Free = 0,
    /// Its producer is writing.
    Reserved = 1,
    /// Committed.
    Ready = 2,
    /// A consumer has it.
    Taken = 3,
}

/// `{number, state, owner}`: a descriptor word, unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    /// Modulo 2⁴⁰.
    pub number: u64,
    pub state: State,
    pub owner: Owner,
}

const NOBODY: u64 = 0;
/// In place of the owner of a Ready record: it was given back. No number of a seat's holder is needed there.
const GIVEN_BACK: u64 = 1;

impl Word {
    #[inline]
    pub fn new(number: u64, state: State, owner: Owner) -> Word {
        Word { number: number & NUMBER_MASK, state, owner }
    }

    #[inline]
    pub fn free(number: u64) -> Word {
        Word::new(number, State::Free, Owner::from_bits(NOBODY))
    }

    #[inline]
    pub fn ready(number: u64) -> Word {
        Word::new(number, State::Ready, Owner::from_bits(NOBODY))
    }

    /// Ready again, after a consumer had taken it.
    pub fn ready_again(number: u64) -> Word {
        Word::new(number, State::Ready, Owner::from_bits(GIVEN_BACK))
    }

    /// Whether it is Ready again.
    #[inline]
    pub fn was_given_back(self) -> bool {
        self.state == State::Ready && self.owner.bits() == GIVEN_BACK
    }

    #[inline]
    pub fn unpack(word: u64) -> Word {
        let state = match word >> STATE_SHIFT & 3 {
            0 => State::Free,
            1 => State::Reserved,
            2 => State::Ready,
            _ => State::Taken,
        };
        Word { number: word >> NUMBER_SHIFT, state, owner: Owner::from_bits(word) }
    }

    #[inline]
    pub fn pack(self) -> u64 {
        self.number << NUMBER_SHIFT | (self.state as u64) << STATE_SHIFT | self.owner.bits()
    }

    /// Whether it is about record `number` of its lane.
    #[inline]
    pub fn is_of(self, number: u64) -> bool {
        self.number == number & NUMBER_MASK
    }

    /// Whether it is a Ready record before `number`, in the descriptor of `number`. A number is offered only when the one before
    /// it in the descriptor is settled, and one that is not settled any more says that it was given back (I3, I7). So this is
    /// damage: no consumer looks for that record.
    pub fn is_lost_before(self, number: u64) -> bool {
        let age = self.age(number);
        self.state == State::Ready && !self.was_given_back() && age != 0 && age < 1 << (NUMBER_BITS - 1)
    }

    /// How many records before `head` its own one comes.
    #[inline]
    pub fn age(self, head: u64) -> u64 {
        head.wrapping_sub(self.number) & NUMBER_MASK
    }
}

/// `{epoch, owner or none}`: the owner word of a lane, unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneOwner {
    /// How often the lane was taken.
    pub epoch: u64,
    pub owner: Option<Owner>,
}

impl LaneOwner {
    #[inline]
    pub fn unpack(word: u64) -> LaneOwner {
        LaneOwner { epoch: word >> (OWNER_BITS + 1), owner: Owner::unpack_maybe(word) }
    }

    #[inline]
    pub fn pack(self) -> u64 {
        self.epoch << (OWNER_BITS + 1) | Owner::pack_maybe(self.owner)
    }
}

/// What only the lane's owner writes.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct WriteLine {
    /// A [`LaneOwner`].
    pub owner: AtomicU64,
    /// The next number. Everything below it was reserved, or skipped.
    pub head: AtomicU64,
    /// How many bytes of the lane exist; the rest of the file is sparse.
    pub grown: AtomicU64,
    /// Committed so far.
    pub sent: AtomicU64,
    /// 1 once the lane's table exists. No process touches the table before.
    pub tabled: AtomicU64,
    pub dropped_oldest: AtomicU64,
    pub dropped_newest: AtomicU64,
    /// How often the producer had to wait for room.
    pub blocked: AtomicU64,
}

/// What consumers write when they take.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ReadLine {
    /// Below this number there are only returned records. A hint that every consumer helps forward.
    pub cursor: AtomicU64,
    /// Moves whenever a record was given back, or may have been: it is Ready again, and may be below the cursor.
    pub returned: AtomicU64,
    /// Up to which of those a consumer has looked and found none.
    pub looked: AtomicU64,
    /// Taken so far.
    pub taken: AtomicU64,
    /// A [`SettledRun`]: what need not be looked at again while the cursor waits for a reservation. A hint.
    pub settled: AtomicU64,
}

/// `{reserved, len}`: a record that was Reserved, and how many numbers behind it were found settled. Both fit a word, because
/// no run is longer than a lane is deep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettledRun {
    /// Modulo 2⁴⁰.
    pub reserved: u64,
    pub len: u64,
}

impl SettledRun {
    const LEN_BITS: u32 = 64 - NUMBER_BITS;

    #[inline]
    pub fn unpack(word: u64) -> SettledRun {
        SettledRun { reserved: word >> Self::LEN_BITS, len: word & ((1 << Self::LEN_BITS) - 1) }
    }

    /// A longer run than there is room for is a shorter one.
    #[inline]
    pub fn pack(self) -> u64 {
        let len = self.len.min((1 << Self::LEN_BITS) - 1);
        (self.reserved & NUMBER_MASK) << Self::LEN_BITS | len
    }
}

/// What is written when room comes back.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct FreeLine {
    /// Released so far. A hint for the producer that there is something to reclaim.
    pub released: AtomicU64,
    /// Reservations given back.
    pub aborted: AtomicU64,
    /// `released` when the producer last lay down to sleep, and after how many more it wants to be woken.
    pub slept_at: AtomicU64,
    pub wake_after: AtomicU64,
}

/// One lane's words.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Lane {
    pub write: WriteLine,
    pub read: ReadLine,
    pub free: FreeLine,
    /// Notified when a record was released. Only the lane's producer waits for it.
    pub room: EventCount,
}

/// What happened so far, to all lanes. Only written where something rare happens.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Counters {
    /// Reservations taken back from dead producers.
    pub recovered: AtomicU64,
    /// Records given back by consumers, or taken back from dead ones.
    pub returned: AtomicU64,
}

/// The head of the body.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Control {
    /// 1 once the records are shut down.
    pub closed: ClosedFlag,
    /// The next number for a producer that did not bring one.
    pub next_producer_id: AtomicU32,
    /// The highest lane that was ever taken, and one: consumers look no further.
    pub lanes_used: AtomicU64,
    /// The version of the newest weights, as the learner tells it. Nothing here depends on it.
    pub published: AtomicU64,
    /// Notified when a record is Ready.
    pub readable: EventCount,
    pub counters: Counters,
    /// Of the forwarder that empties the lanes; see [`forwarding`](super::forwarding).
    pub forwarding: Forwarding,
    pub dwell: Histogram,
    pub wait: Histogram,
}

/// One record's word, its place in the lane's data, and its stamp: a send touches one line of it.
///
/// The other fields are written before Ready is stored, and read after it was loaded.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Descriptor {
    /// A [`Word`]. The truth about the record.
    pub word: AtomicU64,
    /// Where it starts in the lane's data.
    pub start: AtomicU64,
    pub bytes: AtomicU64,
    pub sequence: AtomicU64,
    /// CLOCK_MONOTONIC at the commit.
    pub committed_ns: AtomicU64,
    pub producer_id: AtomicU32,
    pub version: AtomicU32,
    pub kind: AtomicU32,
    /// 0, or one more than the number that a forwarder gave the record. Also written while the record is Taken.
    pub sent: AtomicU64,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Descriptor>() == 64);
    assert!(size_of::<WriteLine>() == 64);
    assert!(size_of::<Lane>() == 256);
    assert!(size_of::<Control>().is_multiple_of(64));
};

/// The sizes of records, and every offset derived from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    pub lanes: usize,
    /// Descriptors of one lane; a power of two.
    pub descriptors: usize,
    /// Data of one lane; whole pages.
    pub lane_bytes: usize,
    pub lanes_offset: usize,
    pub sessions_offset: usize,
    pub descriptors_offset: usize,
    /// Where the data starts.
    pub data_offset: usize,
    pub body_bytes: usize,
}

impl Geometry {
    /// Checks the sizes, rounds them up, and derives the offsets.
    pub fn new(lanes: usize, descriptors: usize, lane_bytes: usize) -> Result<Geometry> {
        if !(1..=1024).contains(&lanes) {
            return Err(Error::out_of_range("lanes", lanes, "1 to 1,024"));
        }
        if !(2..=1 << 24).contains(&descriptors) {
            return Err(Error::out_of_range("records of a lane", descriptors, "2 to 16,777,216"));
        }
        if lane_bytes == 0 || lane_bytes > isize::MAX as usize {
            return Err(Error::out_of_range(
                "lane_bytes",
                lane_bytes,
                "at least 1, and what the address space holds",
            ));
        }
        Self::derive(lanes, descriptors.next_power_of_two(), lane_bytes).ok_or_else(|| {
            Error::out_of_range("lane_bytes", lane_bytes, "what the address space holds, times the lanes")
        })
    }

    fn derive(lanes: usize, descriptors: usize, lane_bytes: usize) -> Option<Geometry> {
        let lane_bytes = lane_bytes.checked_next_multiple_of(PAGE)?;
        let lanes_offset = size_of::<Control>();
        let sessions_offset = lanes_offset + lanes * size_of::<Lane>();
        let descriptors_offset = sessions_offset + SESSIONS * size_of::<SessionEntry>();
        let table_bytes = lanes.checked_mul(descriptors)?.checked_mul(size_of::<Descriptor>())?;
        let data_offset = descriptors_offset.checked_add(table_bytes)?.checked_next_multiple_of(PAGE)?;
        let body_bytes = data_offset.checked_add(lanes.checked_mul(lane_bytes)?)?;
        (body_bytes <= isize::MAX as usize).then_some(Geometry {
            lanes,
            descriptors,
            lane_bytes,
            lanes_offset,
            sessions_offset,
            descriptors_offset,
            data_offset,
            body_bytes,
        })
    }

    /// The numbers for the segment header, with the policy.
    pub fn words(&self, on_full: OnFull) -> [u64; GEOMETRY_WORDS] {
        geometry_words([self.lanes, self.descriptors, self.lane_bytes, 0, on_full as usize])
    }

    /// Where the table of a lane lies in the body, and how many bytes it has.
    pub fn table(&self, lane: usize) -> (usize, usize) {
        let bytes = self.descriptors * size_of::<Descriptor>();
        (self.descriptors_offset + lane * bytes, bytes)
    }

    /// Where the data of a lane starts in the body.
    #[inline]
    pub fn lane_offset(&self, lane: usize) -> usize {
        self.data_offset + lane * self.lane_bytes
    }
}
