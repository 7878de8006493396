//! Where the bytes of one data frame go: into slots, a spill buffer, the room of records, or nowhere.
//!
//! The rows of a frame are divided into *spans*: claimed runs of slots, rows without a slot (spilled), and rows to discard
//! (dropped, refused, or known). The payload is leaf-major, so each leaf visits every span once. In a frame of records, each
//! record is a span, and its rows are bytes of the only leaf. What arrives too slowly is *staged*: moved to the spill buffer. A
//! [`FrameScatter`] gives out the next rooms to read into, and counts what was read. Clearing it gives back its claims.

use super::record_ingress::Room;
use super::sample_ingress::Run;
use super::staging::StagingRoom;
use std::io::IoSliceMut;

/// Bytes to discard are read through a buffer of this size.
const SCRATCH_BYTES: usize = 16 * 1024;

/// Some adjacent rows of a frame.
#[derive(Debug)]
pub enum Span {
    Slots(Run),
    /// Rows in the spill buffer; at most one such span per frame, and no slots behind it. Or a staged record.
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

    /// Whether its rows are in slots or in the spill buffer.
    fn holds_rows(&self) -> bool {
        matches!(self, Span::Slots(_) | Span::Spill(_))
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
#[derive(Debug, Default)]
pub struct FrameScatter {
    leaf_bytes: Vec<usize>,
    spans: Vec<Span>,
    spill: Vec<u8>,
    scratch: Vec<u8>,
    at: Cursor,
    /// Bytes that were read since it was cleared.
    arrived: usize,
    /// The right to a spill buffer of a staged frame.
    staged: Option<StagingRoom>,
}

impl FrameScatter {
    pub fn new(leaf_bytes: &[usize]) -> FrameScatter {
        FrameScatter { leaf_bytes: leaf_bytes.to_vec(), ..FrameScatter::default() }
    }

    /// Forgets the last frame, and gives back what it had claimed.
    pub fn clear(&mut self) {
        let (leaf_bytes, mut spans) = (std::mem::take(&mut self.leaf_bytes), std::mem::take(&mut self.spans));
        spans.clear();
        spans.shrink_to(64);
        *self = FrameScatter { leaf_bytes, spans, ..FrameScatter::default() };
    }

    pub fn push(&mut self, span: Span) {
        match span {
            Span::Spill(rows) => self.spill = vec![0; rows * self.leaf_bytes.iter().sum::<usize>()],
            Span::Discard(_) if self.scratch.is_empty() => self.scratch = vec![0; SCRATCH_BYTES],
            _ => {}
        }
        self.spans.push(span);
    }

    /// Adds `rows` rows that are staged from the start.
    pub fn push_staged(&mut self, rows: usize, room: StagingRoom) {
        self.push(Span::Spill(rows));
        self.staged = Some(room);
    }

    /// Bytes that were read since it was cleared.
    pub fn arrived(&self) -> usize {
        self.arrived
    }

    /// How many rows lie in claimed slots, or in the spill buffer.
    pub fn rows_to_stage(&self) -> usize {
        self.spans.iter().filter(|span| span.holds_rows()).map(Span::rows).sum()
    }

    pub fn has_claims(&self) -> bool {
        self.spans.iter().any(|span| matches!(span, Span::Slots(_) | Span::Record(_)))
    }

    /// Moves what has arrived of a frame to the heap, and gives the slots back. The frame is not whole.
    pub fn stage_rows(&mut self, room: StagingRoom) {
        let Some(first) = self.spans.iter().position(Span::holds_rows) else { return };
        let held = &self.spans[first..];
        let end = first + held.iter().position(|span| !span.holds_rows()).unwrap_or(held.len());
        let rows = self.rows_to_stage();
        let mut heap = vec![0; rows * self.leaf_bytes.iter().sum::<usize>()];
        let (mut before, mut at) = (0, self.at);
        for (leaf, bytes) in self.leaf_bytes.iter().enumerate().take(self.at.leaf + 1) {
            let mut row = 0;
            for (span, place) in
                self.spans[first..end].iter().enumerate().map(|(n, place)| (first + n, place))
            {
                let here = (leaf, span);
                let arrived = match here.cmp(&(self.at.leaf, self.at.span)) {
                    std::cmp::Ordering::Less => place.rows() * bytes,
                    std::cmp::Ordering::Equal => self.at.offset,
                    std::cmp::Ordering::Greater => 0,
                };
                let to = &mut heap[rows * before + row * bytes..][..arrived];
                match place {
                    // SAFETY: the run is claimed by us (I1), and has as many bytes of this leaf, which lie side by side.
                    Span::Slots(run) => unsafe {
                        to.as_mut_ptr().copy_from_nonoverlapping(run.leaf(leaf), arrived);
                    },
                    _ => to.copy_from_slice(&self.spill[place.rows() * before..][..arrived]),
                }
                if here == (self.at.leaf, self.at.span) {
                    (at.span, at.offset) = (first, row * bytes + self.at.offset);
                }
                row += place.rows();
            }
            before += bytes;
        }
        if self.at.span >= end {
            at.span = self.at.span - (end - first) + 1;
        }
        self.spans.splice(first..end, [Span::Spill(rows)]);
        (self.spill, self.at, self.staged) = (heap, at, Some(room));
    }

    /// Takes out the first records, which are whole.
    pub fn take_first(&mut self, count: usize) -> impl Iterator<Item = Span> + use<'_> {
        self.at.span = self.at.span.saturating_sub(count);
        self.spans.drain(..count)
    }

    /// How many records are whole.
    pub fn whole(&self) -> usize {
        self.at.span
    }

    /// The bytes of the first record, which is not whole, if some of them are in claimed room.
    pub fn record_to_stage(&self) -> Option<usize> {
        match self.spans.first() {
            Some(Span::Record(room)) if self.at.offset > 0 => Some(room.len()),
            _ => None,
        }
    }

    /// Moves what has arrived of the first record to the heap, if there is `staging` for it, and gives back all claims.
    pub fn stage_record(&mut self, staging: Option<StagingRoom>) {
        self.spans.truncate(1);
        if let (Some(Span::Record(room)), Some(staging)) = (self.spans.first(), staging) {
            let mut heap = vec![0; room.len()];
            let arrived = self.at.offset;
            // SAFETY: the room is ours until it is committed (I2), and has more bytes than have arrived.
            unsafe { heap[..arrived].as_mut_ptr().copy_from_nonoverlapping(room.as_mut_ptr(), arrived) };
            let bytes = room.len();
            (self.spill, self.staged) = (heap, Some(staging));
            self.spans[0] = Span::Spill(bytes);
        }
    }

    /// Takes out a record that was staged and is whole, with the right to its memory.
    pub fn take_staged(&mut self) -> Option<(Vec<u8>, StagingRoom)> {
        Some((std::mem::take(&mut self.spill), self.staged.take()?))
    }

    /// Copies a staged record into its room, if it has one.
    pub fn fill(&mut self, staged: &[u8]) {
        if let Some(Span::Record(room)) = self.spans.first() {
            let bytes = room.len().min(staged.len());
            // SAFETY: the room is ours until it is committed (I2), and has as many bytes.
            unsafe { room.as_mut_ptr().copy_from_nonoverlapping(staged.as_ptr(), bytes) };
        }
    }

    /// Returns when the staging memory of this frame was given to a faster one; never, if the frame has none.
    pub fn evicted(&self) -> impl Future<Output = ()> + 'static {
        let evicted = self.staged.as_ref().map(StagingRoom::evicted);
        async move {
            match evicted {
                Some(evicted) => evicted.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Tells the staging memory how far the frame is.
    pub fn note(&self) {
        self.staged.iter().for_each(|room| room.note(self.arrived));
    }

    /// Tells the staging memory that the frame is whole. False: it was given to a faster one before that.
    pub fn finish(&self) -> bool {
        self.staged.as_ref().is_none_or(StagingRoom::finish)
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

    /// Puts the next rooms into `rooms`, and `after` behind the last one, if it fits; returns how many.
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
                Span::Record(room) => (room.as_mut_ptr().wrapping_add(at.offset), left),
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

    /// Counts bytes that were read; returns how many of them are behind the frame.
    pub fn advance(&mut self, mut read: usize) -> usize {
        self.arrived += read;
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
    pub fn has_arrived(&self) -> bool {
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
