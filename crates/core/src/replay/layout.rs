//! The bytes of a table: where everything lies, and what the words say.
//!
//! ```text
//! body ┌───────────────────────────────────────────────────┐
//!      │ Control        head │ settled │ closed │ event    │  a line each
//!      ├───────────────────────────────────────────────────┤
//!      │ Tally × seats (64 B)    what each participant did │
//!      ├───────────────────────────────────────────────────┤
//!      │ word × capacity (8 B)   the truth about each row  │
//! page ├───────────────────────────────────────────────────┤
//!      │ row 0: field 0 │ field 1 │ … │ row 1: …           │  from row to row: `stride`
//!      └───────────────────────────────────────────────────┘
//! ```
//!
//! A *position* grows for ever; position modulo capacity is the *row*, the rest of the division is the *lap*. The first lap
//! is 1, so that a zeroed word is older than any. A word, from the high bits down:
//!
//! | word | lap (40) | kind (2) | owner (22) |
//! |---|---|---|---|
//! | row | the lap it was last claimed for | Empty, Writing, Ready | its adder |
//!
//! Laps are compared modulo 2⁴⁰: no process may sleep through 2³⁹ of them (six days of a table with one row, at a million rows a
//! second).

use crate::error::{Error, Result};
use crate::segment::Owner;
use crate::segment::header::{GEOMETRY_WORDS, PAGE, geometry_words};
use crate::segment::lease::OWNER_BITS;
use crate::sys::sync::{AtomicU64, ClosedFlag, EventCount};

/// The `kind` of a segment that holds a table.
pub const KIND: u32 = 4;

const LAP_BITS: u32 = 40;
const LAP_MASK: u64 = (1 << LAP_BITS) - 1;
const KIND_SHIFT: u32 = OWNER_BITS;
const LAP_SHIFT: u32 = OWNER_BITS + 2;
const _: () = assert!(LAP_BITS + 2 + OWNER_BITS == 64);

/// The most rows of a table.
pub const MAX_CAPACITY: usize = (1 << 32) - 1;
/// The most fields of a row.
pub const MAX_FIELDS: usize = 1024;

/// How often the table was gone round, modulo 2⁴⁰, from 1 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lap(u64);

impl Lap {
    pub fn new(value: u64) -> Lap {
        Lap(value & LAP_MASK)
    }

    pub fn value(self) -> u64 {
        self.0
    }

    pub fn next(self) -> Lap {
        Lap::new(self.0 + 1)
    }

    /// Whether this lap came before `other`, within half the number space.
    #[inline]
    pub fn is_before(self, other: Lap) -> bool {
        let distance = other.0.wrapping_sub(self.0) & LAP_MASK;
        distance != 0 && distance < 1 << (LAP_BITS - 1)
    }
}

/// What a row word says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum RowKind {
    /// Never written, given back, or its writer died.
    Empty = 0,
    /// Its owner is writing.
    Writing = 1,
    /// Whole.
    Ready = 2,
}

/// `{lap, kind, owner}`, unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowWord {
    pub lap: Lap,
    pub kind: RowKind,
    pub owner: Owner,
}

impl RowWord {
    pub fn new(lap: Lap, kind: RowKind, owner: Owner) -> RowWord {
        RowWord { lap, kind, owner }
    }

    #[inline]
    pub fn unpack(word: u64) -> RowWord {
        let kind = match word >> KIND_SHIFT & 3 {
            1 => RowKind::Writing,
            2 => RowKind::Ready,
            _ => RowKind::Empty,
        };
        RowWord { lap: Lap::new(word >> LAP_SHIFT), kind, owner: Owner::from_bits(word) }
    }

    #[inline]
    pub fn pack(self) -> u64 {
        self.lap.value() << LAP_SHIFT | (self.kind as u64) << KIND_SHIFT | self.owner.bits()
    }

    /// Whether a packed word is Ready, without the rest.
    #[inline]
    pub fn is_ready(word: u64) -> bool {
        word >> KIND_SHIFT & 3 == RowKind::Ready as u64
    }
}

const REPAIR_BITS: u32 = 24;
const SETTLED_BITS: u32 = 64 - REPAIR_BITS;

/// `{repairs, rows}`: so many rows from the first on hold something whole, or are being replaced by something whole. A
/// repair anywhere changes the word, so that no process moves it with an old view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    pub repairs: u64,
    pub rows: usize,
}

impl Settled {
    pub fn unpack(word: u64) -> Settled {
        Settled { repairs: word >> SETTLED_BITS, rows: (word & ((1 << SETTLED_BITS) - 1)) as usize }
    }

    pub fn pack(self) -> u64 {
        (self.repairs & ((1 << REPAIR_BITS) - 1)) << SETTLED_BITS | self.rows as u64
    }
}

/// What every adder moves.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct WriteLine {
    /// The next position to promise. A hint: the words decide which adder has a row.
    pub head: AtomicU64,
}

/// What counting the rows moves.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ReadLine {
    /// A [`Settled`].
    pub settled: AtomicU64,
    /// 1 once the last learner has left.
    pub closed: ClosedFlag,
}

/// The head of the body.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Control {
    pub write: WriteLine,
    pub read: ReadLine,
    /// Rung when rows are committed or given back.
    pub changed: EventCount,
}

/// What one participant did, with the earlier holders of its seat. A death can cost a count.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Tally {
    /// Rows committed.
    pub added: AtomicU64,
    /// Of these, how many replaced a whole one.
    pub overwritten: AtomicU64,
    /// Rows passed over because a living adder was writing them, or because others had gone round meanwhile.
    pub skipped: AtomicU64,
    /// Rows taken over from the dead.
    pub recovered: AtomicU64,
    /// Rows sampled.
    pub sampled: AtomicU64,
    /// Draws that met a row that was not whole, or did not stay so.
    pub redrawn: AtomicU64,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Tally>() == 64);
    assert!(size_of::<WriteLine>() == 64 && size_of::<ReadLine>() == 64);
    assert!(size_of::<Control>() == 192);
};

/// One field of a row: where it starts, and how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    pub offset: usize,
    pub bytes: usize,
}

/// The sizes of a table, and every offset derived from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    pub capacity: usize,
    pub fields: Vec<Field>,
    pub row_bytes: usize,
    /// From one row to the next.
    pub stride: usize,
    pub seats: usize,
    pub tallies_offset: usize,
    pub words_offset: usize,
    pub rows_offset: usize,
    pub body_bytes: usize,
}

/// A cache line.
pub const LINE: usize = 64;

impl Geometry {
    /// Checks the sizes and derives the offsets.
    pub fn new(capacity: usize, row_bytes: usize, fields: &[Field], seats: usize) -> Result<Geometry> {
        if capacity == 0 || capacity > MAX_CAPACITY {
            return Err(Error::out_of_range("capacity", capacity, "1 to 4,294,967,295"));
        }
        if fields.is_empty() || fields.len() > MAX_FIELDS {
            return Err(Error::out_of_range("fields", fields.len(), "1 to 1,024"));
        }
        let inside =
            |field: &Field| field.offset.checked_add(field.bytes).is_some_and(|end| end <= row_bytes);
        if row_bytes == 0 || !fields.iter().all(inside) {
            return Err(Error::out_of_range(
                "row bytes",
                row_bytes,
                "at least one, and room for every field",
            ));
        }
        Self::derive(capacity, row_bytes, fields, seats).ok_or_else(|| {
            Error::out_of_range("table bytes", usize::MAX, "1 to what the address space holds")
        })
    }

    fn derive(capacity: usize, row_bytes: usize, fields: &[Field], seats: usize) -> Option<Geometry> {
        let stride = Self::stride_of(row_bytes)?;
        let tallies_offset = size_of::<Control>();
        let words_offset = tallies_offset.checked_add(seats.checked_mul(size_of::<Tally>())?)?;
        let words_bytes = capacity.checked_mul(size_of::<AtomicU64>())?;
        let rows_offset = words_offset.checked_add(words_bytes)?.checked_next_multiple_of(PAGE)?;
        let body_bytes = rows_offset.checked_add(stride.checked_mul(capacity)?)?;
        (body_bytes <= isize::MAX as usize).then(|| Geometry {
            capacity,
            fields: fields.to_vec(),
            row_bytes,
            stride,
            seats,
            tallies_offset,
            words_offset,
            rows_offset,
            body_bytes,
        })
    }

    /// Whole cache lines where that costs an eighth at most: two writers then share none, and a reader touches one line
    /// less. Otherwise packed, to eight bytes.
    fn stride_of(row_bytes: usize) -> Option<usize> {
        let lines = row_bytes.checked_next_multiple_of(LINE)?;
        if lines - row_bytes <= row_bytes / 8 { Some(lines) } else { row_bytes.checked_next_multiple_of(8) }
    }

    /// The numbers for the segment header: enough to tell two geometries apart.
    pub fn words(&self) -> [u64; GEOMETRY_WORDS] {
        geometry_words([self.capacity, self.fields.len(), self.row_bytes, self.stride])
    }
}
