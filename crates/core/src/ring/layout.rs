//! The bytes of a ring: where everything lies, and what the words say.
//!
//! ```text
//! body ┌─────────────────────────────────────────────────────────────┐
//!      │ Control   open, cursor, holes │ two events │ counters │ …   │
//!      ├─────────────────────────────────────────────────────────────┤
//!      │ Buffer × num_buffers (64 B)   word, target, sealed, sent    │
//!      ├─────────────────────────────────────────────────────────────┤
//!      │ SessionEntry × 1,024 (64 B)   id, next, log, holder         │
//!      ├─────────────────────────────────────────────────────────────┤
//!      │ Slot × num_buffers × batch_size (32 B)   word, stamp        │
//! page ├─────────────────────────────────────────────────────────────┤
//!      │ buffer 0: leaf 0 [batch_size × leaf bytes] │ leaf 1 […] │ … │  each leaf aligned to 64
//! page │ buffer 1: …                                                 │
//!      └─────────────────────────────────────────────────────────────┘
//! ```
//!
//! A *batch* has a number that grows for ever. A *buffer* is the room for one batch; any free buffer may take the
//! next batch, so one that is held for long blocks no producer. The words, from the high bits down:
//!
//! | word | batch (40) | kind (2) | owner (22) |
//! |---|---|---|---|
//! | slot | the batch it was last claimed for | Free, Claimed, Ready, Skipped | its producer |
//! | buffer | the batch in it | Free, Filling, Taken | its consumer |
//! | open | the batch being filled | – the buffer it is in (24) | |
//!
//! Batch numbers are compared modulo 2⁴⁰: a batch must not be held while 2³⁹ others pass (six days at a million
//! batches a second).

use crate::error::{Error, Result};
use crate::policies::OnFull;
use crate::segment::forwarding::Forwarding;
use crate::segment::header::{GEOMETRY_WORDS, PAGE, geometry_words};
use crate::segment::histogram::Histogram;
use crate::segment::lease::OWNER_BITS;
use crate::segment::sessions::{SESSIONS, SessionEntry};
use crate::segment::{Owner, SERIAL_BITS, Serial};
use crate::sys::sync::{AtomicU32, AtomicU64, ClosedFlag, EventCount};
use std::cell::UnsafeCell;

/// The `kind` of a segment that holds a ring.
pub const KIND: u32 = 1;

/// Which number of the header is the policy.
pub(super) const ON_FULL_WORD: usize = 4;

const KIND_SHIFT: u32 = OWNER_BITS;
const BATCH_SHIFT: u32 = OWNER_BITS + 2;
const _: () = assert!(SERIAL_BITS + 2 + OWNER_BITS == 64);
const INDEX_BITS: u32 = 24;

/// The largest batch: the cursor passes it twice, in `INDEX_BITS`.
pub const MAX_BATCH: usize = (1 << (INDEX_BITS - 1)) - 1;

/// The [`target`](Buffer::target) that stands for every slot.
pub const ANY_SLOT: u64 = u64::MAX;

/// The bit of [`sent_batch`](Buffer::sent_batch) that tells a batch from none: after 2⁴⁰ batches, one has the number 0.
pub const NUMBERED: u64 = 1 << 63;

/// The number of a batch.
pub type BatchNo = Serial;

/// What a slot word says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum SlotKind {
    /// Given back (aborted, or its owner died): the next producer may have it.
    Free = 0,
    /// Its owner is writing.
    Claimed = 1,
    /// Committed.
    Ready = 2,
    /// The batch was closed early, and this slot stays empty.
    Skipped = 3,
}

/// What a buffer word says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum BufferKind {
    /// Its last batch was released.
    Free = 0,
    /// Producers fill it, or have filled it.
    Filling = 1,
    /// A consumer has it.
    Taken = 2,
}

/// `{batch, kind, owner}`: a slot word or a buffer word, unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word<K> {
    pub batch: BatchNo,
    pub kind: K,
    pub owner: Owner,
}

/// A [`Word`] of a slot.
pub type SlotWord = Word<SlotKind>;
/// A [`Word`] of a buffer.
pub type BufferWord = Word<BufferKind>;

const NOBODY: u64 = 0;

impl SlotWord {
    pub fn new(batch: BatchNo, kind: SlotKind, owner: Owner) -> SlotWord {
        Word { batch, kind, owner }
    }

    pub fn free(batch: BatchNo) -> SlotWord {
        Word { batch, kind: SlotKind::Free, owner: Owner::from_bits(NOBODY) }
    }

    pub fn skipped(batch: BatchNo) -> SlotWord {
        Word { batch, kind: SlotKind::Skipped, owner: Owner::from_bits(NOBODY) }
    }

    #[inline]
    pub fn unpack(word: u64) -> SlotWord {
        let kind = match word >> KIND_SHIFT & 3 {
            0 => SlotKind::Free,
            1 => SlotKind::Claimed,
            2 => SlotKind::Ready,
            _ => SlotKind::Skipped,
        };
        Word { batch: BatchNo::new(word >> BATCH_SHIFT), kind, owner: Owner::from_bits(word) }
    }

    #[inline]
    pub fn pack(self) -> u64 {
        self.batch.value() << BATCH_SHIFT | (self.kind as u64) << KIND_SHIFT | self.owner.bits()
    }

    /// Whether a producer of `batch` may claim the slot: it was last used for an older batch, or given back in this.
    #[inline]
    pub fn is_claimable_for(self, batch: BatchNo) -> bool {
        self.batch.is_before(batch) || (self.batch == batch && self.kind == SlotKind::Free)
    }

    /// Whether nothing will change in this slot before `batch` is released.
    #[inline]
    pub fn is_settled_for(self, batch: BatchNo) -> bool {
        self.batch == batch && matches!(self.kind, SlotKind::Ready | SlotKind::Skipped)
    }

    #[inline]
    pub fn is_ready_for(self, batch: BatchNo) -> bool {
        self.batch == batch && self.kind == SlotKind::Ready
    }
}

impl BufferWord {
    pub fn free(batch: BatchNo) -> BufferWord {
        Word { batch, kind: BufferKind::Free, owner: Owner::from_bits(NOBODY) }
    }

    pub fn filling(batch: BatchNo) -> BufferWord {
        Word { batch, kind: BufferKind::Filling, owner: Owner::from_bits(NOBODY) }
    }

    pub fn taken(batch: BatchNo, owner: Owner) -> BufferWord {
        Word { batch, kind: BufferKind::Taken, owner }
    }

    #[inline]
    pub fn unpack(word: u64) -> BufferWord {
        let kind = match word >> KIND_SHIFT & 3 {
            1 => BufferKind::Filling,
            2 => BufferKind::Taken,
            _ => BufferKind::Free,
        };
        Word { batch: BatchNo::new(word >> BATCH_SHIFT), kind, owner: Owner::from_bits(word) }
    }

    #[inline]
    pub fn pack(self) -> u64 {
        self.batch.value() << BATCH_SHIFT | (self.kind as u64) << KIND_SHIFT | self.owner.bits()
    }
}

/// `{batch, index}`: the batch that is open and its buffer, or the cursor in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub batch: BatchNo,
    pub index: usize,
}

impl Place {
    #[inline]
    pub fn unpack(word: u64) -> Place {
        let index = (word & ((1 << INDEX_BITS) - 1)) as usize;
        Place { batch: BatchNo::new(word >> INDEX_BITS), index }
    }

    #[inline]
    pub fn pack(self) -> u64 {
        self.batch.value() << INDEX_BITS | self.index as u64
    }
}

/// The words that every producer touches, on one line.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct WriteLine {
    /// A [`Place`]: which batch is being filled, and in which buffer. The one truth about that.
    pub open: AtomicU64,
    /// A [`Place`]: where in the open batch to look first; beyond the batch size, in a second round. A hint.
    pub cursor: AtomicU64,
    /// How many slots were given back in batches that are not full. A hint.
    pub holes: AtomicU64,
}

/// What happened so far. Only written where something rare happens.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Counters {
    pub blocked: AtomicU64,
    pub dropped_oldest: AtomicU64,
    pub dropped_newest: AtomicU64,
    pub recovered_slots: AtomicU64,
    pub reoffered_batches: AtomicU64,
    pub aborted: AtomicU64,
    pub batches_released: AtomicU64,
    pub samples_released: AtomicU64,
}

/// The head of the body.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Control {
    pub write: WriteLine,
    /// Notified when a batch is complete.
    pub readable: EventCount,
    /// Notified when a buffer or a slot is free.
    pub writable: EventCount,
    pub counters: Counters,
    /// Of the forwarder that empties this ring; see [`forwarding`](super::forwarding).
    pub forwarding: Forwarding,
    /// 1 once the ring is shut down.
    pub closed: ClosedFlag,
    /// The next number for a producer that did not bring one.
    pub next_producer_id: AtomicU32,
    pub memcpy: Histogram,
    pub dwell: Histogram,
    pub wait: Histogram,
}

/// One buffer's words.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Buffer {
    /// A [`BufferWord`].
    pub word: AtomicU64,
    /// The slot whose commit should wake the consumer, besides the last one, or [`ANY_SLOT`]. A hint.
    pub target: AtomicU64,
    /// The number of the last batch in this buffer that was closed early.
    pub sealed: AtomicU64,
    /// CLOCK_MONOTONIC when it was last taken. For people.
    pub taken_ns: AtomicU64,
    /// The last batch in this buffer that a forwarder gave numbers, with [`NUMBERED`], and the number of its first sample.
    pub sent_batch: AtomicU64,
    pub sent_first: AtomicU64,
}

/// What a producer writes beside its payload.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stamp {
    pub sequence: u64,
    /// CLOCK_MONOTONIC at the commit.
    pub committed_ns: u64,
    pub producer_id: u32,
    pub version: u32,
}

/// One slot's word and stamp, side by side: a send touches one line.
#[repr(C, align(32))]
#[derive(Debug, Default)]
pub struct Slot {
    /// A [`SlotWord`]. The truth about the slot.
    pub word: AtomicU64,
    /// Written by the owner of the claim, read by the taker of the batch.
    pub stamp: UnsafeCell<Stamp>,
}

// SAFETY: `stamp` is written only under a claim and read only after the commit that the claim ends in (I1, I2).
unsafe impl Sync for Slot {}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Slot>() == 32);
    assert!(size_of::<Buffer>() == 64);
    assert!(size_of::<WriteLine>() == 64);
    assert!(std::mem::offset_of!(Slot, stamp) == 8);
};

/// The sizes of a ring, and every offset derived from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    pub batch_size: usize,
    pub num_buffers: usize,
    /// Bytes of one sample of each leaf.
    pub leaf_bytes: Vec<usize>,
    /// Where each leaf starts in a buffer.
    pub leaf_offsets: Vec<usize>,
    pub buffers_offset: usize,
    pub sessions_offset: usize,
    pub slots_offset: usize,
    pub payload_offset: usize,
    /// From one buffer's payload to the next.
    pub buffer_stride: usize,
    pub body_bytes: usize,
    /// How many slots the cursor moves at a time; see [`Protocol`](super::protocol::Protocol).
    pub block: usize,
}

/// Samples up to this size share cache lines with their neighbours to an extent that is worth avoiding.
const SMALL_BYTES: usize = 256;
/// The longest block, and the fewest blocks in a batch.
const BLOCK_SLOTS: usize = 16;
const BLOCKS: usize = 16;

impl Geometry {
    /// Checks the sizes and derives the offsets.
    pub fn new(batch_size: usize, num_buffers: usize, leaf_bytes: &[usize]) -> Result<Geometry> {
        if batch_size == 0 || batch_size > MAX_BATCH {
            return Err(Error::out_of_range("batch_size", batch_size, "1 to 8,388,607"));
        }
        if !(2..1 << 16).contains(&num_buffers) {
            return Err(Error::out_of_range("num_buffers", num_buffers, "2 to 65,535"));
        }
        if leaf_bytes.is_empty() {
            return Err(Error::out_of_range("leaves", 0, "at least one array"));
        }
        Self::derive(batch_size, num_buffers, leaf_bytes)
            .ok_or_else(|| Error::out_of_range("ring bytes", usize::MAX, "what the address space holds"))
    }

    fn derive(batch_size: usize, num_buffers: usize, leaf_bytes: &[usize]) -> Option<Geometry> {
        let buffers_offset = size_of::<Control>();
        let sessions_offset = buffers_offset + num_buffers * size_of::<Buffer>();
        let slots_offset = sessions_offset + SESSIONS * size_of::<SessionEntry>();
        let slots_bytes = num_buffers.checked_mul(batch_size)?.checked_mul(size_of::<Slot>())?;
        let payload_offset = slots_offset.checked_add(slots_bytes)?.checked_next_multiple_of(PAGE)?;
        let mut end = 0usize;
        let mut leaf_offsets = Vec::with_capacity(leaf_bytes.len());
        for bytes in leaf_bytes {
            leaf_offsets.push(end);
            end = end.checked_add(bytes.checked_mul(batch_size)?)?.checked_next_multiple_of(64)?;
        }
        let buffer_stride = end.checked_next_multiple_of(PAGE)?;
        let body_bytes = payload_offset.checked_add(buffer_stride.checked_mul(num_buffers)?)?;
        let small = end <= SMALL_BYTES * batch_size;
        let block = if small { 1 << (batch_size / BLOCKS).clamp(1, BLOCK_SLOTS).ilog2() } else { 1 };
        (body_bytes <= isize::MAX as usize).then(|| Geometry {
            batch_size,
            num_buffers,
            leaf_bytes: leaf_bytes.to_vec(),
            leaf_offsets,
            buffers_offset,
            sessions_offset,
            slots_offset,
            payload_offset,
            buffer_stride,
            body_bytes,
            block,
        })
    }

    /// The numbers for the segment header: enough to tell two geometries apart, and the policy.
    pub fn words(&self, on_full: OnFull) -> [u64; GEOMETRY_WORDS] {
        let (leaves, bytes) = (self.leaf_bytes.len(), self.leaf_bytes.iter().sum());
        let slots = self.batch_size * self.num_buffers;
        geometry_words([self.batch_size, self.num_buffers, leaves, bytes, on_full as usize, slots])
    }
}
