//! Where the bytes of one data frame go: leaf by leaf, into slots, a spill buffer, or nowhere; or into the room of records.
//!
//! The rows of a frame fall into *spans*: claimed runs of slots, rows for which there was no slot (spilled), rows
//! that nobody wants (dropped, refused, or here already). The payload is leaf-major, so each leaf visits every span
//! once. Of records, each is a span, and its rows are bytes of the only leaf. A [`Landing`] hands out the next rooms to read into and is told how much was read. Cleared, it gives back
//! what it has claimed.

use super::intake::Run;
use super::record_intake::Room;
use std::io::IoSliceMut;

/// Bytes that nobody wants are read through a buffer of this size.
const SCRATCH_BYTES: usize = 16 * 1024;

/// Some adjacent rows of a frame.
#[derive(Debug)]
pub enum Span {
    Slots(Run),
    /// Rows that wait in the spill buffer; at most one per frame, and the last.
    Spill(usize),
    Discard(usize),
    /// The room of one record.
    Record(Room),
}

impl Span {
    pub fn rows(&self) -> usize {
        match self {
            Span::Slots(run) => run.len(),
            Span::Spill(rows) | Span::Discard(rows) => *rows,
            Span::Record(room) => room.len(),
        }
    }
}

/// Where the next byte goes.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    leaf: usize,
    span: usize,
    /// In this leaf of this span.
    offset: usize,
}

/// The places for one frame.
#[derive(Debug)]
pub struct Landing {
    leaf_bytes: Vec<usize>,
    spans: Vec<Span>,
    spill: Vec<u8>,
    scratch: Vec<u8>,
    at: Cursor,
}

impl Landing {
    pub fn new(leaf_bytes: &[usize]) -> Landing {
        Landing {
            leaf_bytes: leaf_bytes.to_vec(),
            spans: Vec::new(),
            spill: Vec::new(),
            scratch: Vec::new(),
            at: Cursor::default(),
        }
    }

    /// Forgets the last frame, and gives back what it had claimed.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.spans.shrink_to(64);
        self.spill = Vec::new();
        self.scratch = Vec::new();
        self.at = Cursor::default();
    }

    pub fn push(&mut self, span: Span) {
        match span {
            Span::Spill(rows) => self.spill = vec![0; rows * self.leaf_bytes.iter().sum::<usize>()],
            Span::Discard(_) if self.scratch.is_empty() => self.scratch = vec![0; SCRATCH_BYTES],
            _ => {}
        }
        self.spans.push(span);
    }

    /// Gives back the slots that were claimed so far.
    pub fn give_back(&mut self) {
        self.spans.retain(|span| !matches!(span, Span::Slots(_)));
    }

    /// Takes the spans out, in the order of their rows.
    pub fn take_spans(&mut self) -> impl Iterator<Item = Span> + use<'_> {
        self.spans.drain(..)
    }

    /// Bytes of the current leaf in the current span.
    fn extent(&self, at: Cursor) -> usize {
        self.spans[at.span].rows() * self.leaf_bytes[at.leaf]
    }

    fn is_behind(&self, at: Cursor) -> bool {
        at.leaf == self.leaf_bytes.len() || self.spans.is_empty()
    }

    fn step(&self, at: Cursor) -> Cursor {
        if at.span + 1 < self.spans.len() {
            Cursor { span: at.span + 1, offset: 0, ..at }
        } else {
            Cursor { leaf: at.leaf + 1, span: 0, offset: 0 }
        }
    }

    /// Puts the next rooms into `rooms`, and behind the last one `after`, if there is room for it. Says how many.
    pub fn rooms<'a>(&'a mut self, rooms: &mut [IoSliceMut<'a>], after: &'a mut [u8]) -> usize {
        let (mut at, mut count) = (self.at, 0);
        let scratch = self.scratch.as_mut_ptr();
        let spill = self.spill.as_mut_ptr();
        while count < rooms.len() {
            if self.is_behind(at) {
                rooms[count] = IoSliceMut::new(after);
                return count + 1;
            }
            let left = self.extent(at) - at.offset;
            let (place, len) = match &self.spans[at.span] {
                Span::Slots(run) => (run.leaf(at.leaf).wrapping_add(at.offset), left),
                Span::Spill(rows) => {
                    let before: usize = self.leaf_bytes[..at.leaf].iter().sum();
                    (spill.wrapping_add(rows * before + at.offset), left)
                }
                Span::Discard(_) => (scratch, left.min(SCRATCH_BYTES)),
                Span::Record(room) => (room.start().wrapping_add(at.offset), left),
            };
            if len > 0 {
                // SAFETY: slots are claimed by the run, which we hold (I1), and a claim's rows of a leaf lie side by
                // side; so is a record's room, all of it; the spill buffer has room for all leaves of its rows; the scratch buffer has SCRATCH_BYTES
                // and is lent once, because the loop ends with it. No two rooms overlap, and all live as long as
                // `self` is borrowed.
                rooms[count] = IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(place, len) });
                count += 1;
            }
            if matches!(self.spans[at.span], Span::Discard(_)) && len > 0 {
                return count;
            }
            at = self.step(at);
        }
        count
    }

    /// Notes that so many bytes were read; gives back how many of them lie behind the frame.
    pub fn advance(&mut self, mut read: usize) -> usize {
        while !self.is_behind(self.at) {
            let left = self.extent(self.at) - self.at.offset;
            if read < left {
                self.at.offset += read;
                return 0;
            }
            read -= left;
            self.at = self.step(self.at);
        }
        read
    }

    /// Whether the whole frame is here.
    pub fn has_landed(&self) -> bool {
        self.is_behind(self.at)
    }

    /// Copies spilled rows, from row `first` of `rows` on, into a run.
    pub fn copy_spilled(&self, run: &Run, first: usize, rows: usize) {
        let mut before = 0;
        for (leaf, bytes) in self.leaf_bytes.iter().enumerate() {
            let from = rows * before + first * bytes;
            let source = &self.spill[from..from + run.len() * bytes];
            // SAFETY: the run is claimed by us (I1), and has `len` rows of `bytes` bytes of this leaf.
            unsafe { run.leaf(leaf).copy_from_nonoverlapping(source.as_ptr(), source.len()) };
            before += bytes;
        }
    }
}
