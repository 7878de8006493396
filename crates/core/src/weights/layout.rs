//! The bytes of weights: where everything lies, and what the words say.
//!
//! ```text
//! body ┌────────────────────────────────────────────────────────────────────────────┐
//!      │ Control        latest, grown │ writer, closed │ published event │ counters │
//!      ├────────────────────────────────────────────────────────────────────────────┤
//!      │ PinLine × seats (64 B)         which buffers the holder of a seat reads    │
//!      ├────────────────────────────────────────────────────────────────────────────┤
//!      │ leaf sizes × leaves (8 B)      written once, before the name exists        │
//!      ├────────────────────────────────────────────────────────────────────────────┤
//!      │ BufferHead × max_buffers (64 B)               the sequence of each buffer  │
//!      ├────────────────────────────────────────────────────────────────────────────┤
//!      │ LeafEntry × max_buffers × leaves (16 B)       version and checksum         │
//! page ├────────────────────────────────────────────────────────────────────────────┤
//!      │ buffer 0: every leaf, each at a multiple of 64                             │
//! page │ buffer 1: …                                                                │
//!      │ (sparse from `grown` on)                                                   │
//!      └────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The words, from the high bits down:
//!
//! | word | | |
//! |---|---|---|
//! | latest | version (56) | buffer (8) |
//! | pin | what is pinned (8) | whether there is an owner (1), the owner (22) |
//! | writer | whether it is abandoned (1), whether the owner is writing (1) | whether there is an owner (1), the owner (22) |
//!
//! Version 0 is "nothing was published yet". A sequence of 0 is "nothing to rely on": never written, or being written.

use crate::error::{Error, Result};
use crate::segment::Owner;
use crate::segment::header::{GEOMETRY_WORDS, PAGE, geometry_words};
use crate::segment::lease::OWNER_BITS;
use crate::sys::sync::{AtomicU64, ClosedFlag, EventCount};

/// The `kind` of a segment that holds weights.
pub const KIND: u32 = 3;

/// Every leaf starts at a multiple of this, in its buffer and in memory.
pub const ALIGN: usize = 64;

/// How many buffers exist from the start: the latest, the next, and one that a reader is still busy with.
pub const FIRST_BUFFERS: usize = 3;

/// As many as the word has bits for.
pub const MAX_BUFFERS: usize = 256;

/// How many threads of one handle can read with a pin of their own. Under loom every word costs interleavings.
pub const PINS: usize = if cfg!(loom) { 1 } else { 8 };

const BUFFER_BITS: u32 = 8;

/// What was published last: `{version, buffer}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latest {
    pub version: u64,
    pub buffer: usize,
}

impl Latest {
    #[inline]
    pub fn unpack(word: u64) -> Latest {
        Latest { version: word >> BUFFER_BITS, buffer: (word & (MAX_BUFFERS as u64 - 1)) as usize }
    }

    #[inline]
    pub fn pack(self) -> u64 {
        self.version << BUFFER_BITS | self.buffer as u64
    }
}

/// The writer word of weights whose last writer died, once its seat has another holder: it names no owner, and says that the
/// writer may come back.
pub const ABANDONED: u64 = 1 << 63;

const WRITING: u64 = 1 << 62;

/// The writer word: which process was the last one to write, or came to write when there was none, and whether it is in the
/// middle of a write. 0 and [`ABANDONED`] name none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastWriter {
    pub owner: Owner,
    pub is_writing: bool,
}

impl LastWriter {
    #[inline]
    pub fn unpack(word: u64) -> Option<LastWriter> {
        Owner::unpack_maybe(word).map(|owner| LastWriter { owner, is_writing: word & WRITING != 0 })
    }

    #[inline]
    pub fn pack(self) -> u64 {
        (if self.is_writing { WRITING } else { 0 }) | Owner::pack_maybe(Some(self.owner))
    }
}

/// A pin: a word that names an owner, and which buffer it reads. 0 names none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    pub owner: Owner,
    pub buffer: usize,
}

impl Holder {
    #[inline]
    pub fn unpack(word: u64) -> Option<Holder> {
        let buffer = (word >> (OWNER_BITS + 1)) as usize & (MAX_BUFFERS - 1);
        Owner::unpack_maybe(word).map(|owner| Holder { owner, buffer })
    }

    #[inline]
    pub fn pack(self) -> u64 {
        (self.buffer as u64) << (OWNER_BITS + 1) | Owner::pack_maybe(Some(self.owner))
    }
}

/// What every reader looks at, and only the process that writes changes.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct PublishLine {
    /// A [`Latest`]. The truth about what readers get.
    pub latest: AtomicU64,
    /// How many buffers exist; the rest of the file is sparse.
    pub grown: AtomicU64,
    /// CLOCK_MONOTONIC when `latest` was published. For people.
    pub published_ns: AtomicU64,
}

/// The writers' line.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct WriterLine {
    /// A [`LastWriter`]; 0: the last writer to go left properly, or there was none; [`ABANDONED`]: it died.
    pub writer: AtomicU64,
    /// 1 once the weights are shut down.
    pub closed: ClosedFlag,
}

/// What happened so far. Only written where something rare happens.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Counters {
    /// Copies that a reader made again, because the writer had to take the buffer from under it.
    pub retries: AtomicU64,
    /// Buffers that the writer took although a living reader was at them.
    pub overtaken: AtomicU64,
    /// Pins of dead readers, cleared.
    pub recovered: AtomicU64,
}

/// The head of the body.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Control {
    pub publish: PublishLine,
    pub write: WriterLine,
    /// Notified when a version was published.
    pub published: EventCount,
    pub counters: Counters,
}

/// What the holder of one seat reads: one word for each of its threads. Only that holder stores pins. Any process clears those of
/// the dead, with a CAS from the word that names them.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct PinLine {
    pub pins: [AtomicU64; PINS],
}

/// One buffer's word.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct BufferHead {
    /// The version of which the buffer is a whole copy, or 0.
    pub sequence: AtomicU64,
}

/// One leaf in one buffer.
#[repr(C)]
#[derive(Debug, Default)]
pub struct LeafEntry {
    /// The version that changed the leaf last.
    pub version: AtomicU64,
    /// Of its bytes; 0 without checksums.
    pub checksum: AtomicU64,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<PinLine>() == 64);
    assert!(size_of::<BufferHead>() == 64);
    assert!(size_of::<LeafEntry>() == 16);
    assert!(size_of::<Control>() == 256);
};

/// The sizes of weights, and every offset derived from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    pub seats: usize,
    pub max_buffers: usize,
    /// Bytes of each leaf.
    pub leaf_bytes: Vec<usize>,
    /// Where each leaf starts in a buffer.
    pub leaf_offsets: Vec<usize>,
    /// Whole pages.
    pub buffer_bytes: usize,
    pub pins_offset: usize,
    pub sizes_offset: usize,
    pub heads_offset: usize,
    pub entries_offset: usize,
    /// Where the buffers start.
    pub data_offset: usize,
    pub body_bytes: usize,
}

impl Geometry {
    /// Checks the sizes and derives the offsets.
    pub fn new(seats: usize, max_buffers: usize, leaf_bytes: Vec<usize>) -> Result<Geometry> {
        if !(FIRST_BUFFERS..=MAX_BUFFERS).contains(&max_buffers) {
            return Err(Error::out_of_range(
                "max_buffers",
                max_buffers,
                format!("{FIRST_BUFFERS} to {MAX_BUFFERS}"),
            ));
        }
        if leaf_bytes.is_empty() || leaf_bytes.len() > 1 << 24 {
            return Err(Error::out_of_range("leaves", leaf_bytes.len(), "1 to 16,777,216"));
        }
        let bytes = leaf_bytes.iter().fold(0usize, |sum, &bytes| sum.saturating_add(bytes));
        Self::derive(seats, max_buffers, leaf_bytes).ok_or_else(|| {
            Error::out_of_range(
                "bytes of all leaves",
                bytes,
                "what the address space holds, times max_buffers",
            )
        })
    }

    fn derive(seats: usize, max_buffers: usize, leaf_bytes: Vec<usize>) -> Option<Geometry> {
        let leaves = leaf_bytes.len();
        let (mut leaf_offsets, mut end) = (Vec::with_capacity(leaves), 0usize);
        for &bytes in &leaf_bytes {
            leaf_offsets.push(end);
            end = end.checked_add(bytes)?.checked_next_multiple_of(ALIGN)?;
        }
        let buffer_bytes = end.max(1).checked_next_multiple_of(PAGE)?;
        let pins_offset = size_of::<Control>();
        let sizes_offset = pins_offset + seats * size_of::<PinLine>();
        let heads_offset = (sizes_offset + leaves * size_of::<u64>()).next_multiple_of(ALIGN);
        let entries_offset = heads_offset + max_buffers * size_of::<BufferHead>();
        let entries_bytes = max_buffers.checked_mul(leaves)?.checked_mul(size_of::<LeafEntry>())?;
        let data_offset = entries_offset.checked_add(entries_bytes)?.checked_next_multiple_of(PAGE)?;
        let body_bytes = data_offset.checked_add(buffer_bytes.checked_mul(max_buffers)?)?;
        (body_bytes <= isize::MAX as usize).then_some(Geometry {
            seats,
            max_buffers,
            leaf_bytes,
            leaf_offsets,
            buffer_bytes,
            pins_offset,
            sizes_offset,
            heads_offset,
            entries_offset,
            data_offset,
            body_bytes,
        })
    }

    pub fn leaves(&self) -> usize {
        self.leaf_bytes.len()
    }

    /// Where the leaf sizes end, if they were `leaves` many: what must be there before they can be read.
    pub fn sizes_of(seats: usize, leaves: usize) -> Option<(usize, usize)> {
        let start = size_of::<Control>() + seats.checked_mul(size_of::<PinLine>())?;
        Some((start, start.checked_add(leaves.checked_mul(size_of::<u64>())?)?))
    }

    /// The numbers for the segment header.
    pub fn words(&self) -> [u64; GEOMETRY_WORDS] {
        geometry_words([self.leaves(), self.buffer_bytes, self.max_buffers])
    }

    /// Where a buffer lies in the body.
    #[inline]
    pub fn buffer_offset(&self, buffer: usize) -> usize {
        self.data_offset + buffer * self.buffer_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_as_they_were_packed() {
        let latest = Latest { version: 1 << 50, buffer: 255 };
        assert_eq!(Latest::unpack(latest.pack()), latest);
        let holder = Holder { owner: Owner::new(1023, 77), buffer: 255 };
        assert_eq!(Holder::unpack(holder.pack()), Some(holder));
        assert_eq!(Holder::unpack(0), None);
        for is_writing in [false, true] {
            let last = LastWriter { owner: Owner::new(1023, 77), is_writing };
            assert_eq!(LastWriter::unpack(last.pack()), Some(last));
        }
        assert_eq!((LastWriter::unpack(0), LastWriter::unpack(ABANDONED)), (None, None));
    }

    #[test]
    fn leaves_are_aligned_and_do_not_overlap() {
        let geometry = Geometry::new(4, 8, vec![1, 64, 0, 65, 4096]).unwrap();
        assert_eq!(geometry.leaf_offsets, [0, 64, 128, 128, 256]);
        assert_eq!(geometry.buffer_bytes, 8192);
        assert!(geometry.data_offset.is_multiple_of(PAGE));
    }

    #[test]
    fn sizes_that_no_address_space_holds_are_refused() {
        assert!(matches!(Geometry::new(4, 8, vec![usize::MAX, 2]), Err(Error::OutOfRange { .. })));
        assert!(matches!(Geometry::new(4, 2, vec![8]), Err(Error::OutOfRange { what: "max_buffers", .. })));
        assert!(matches!(Geometry::new(4, 3, vec![]), Err(Error::OutOfRange { what: "leaves", .. })));
    }
}
