//! Adding: rows from arrays, field by field, into the table.
//!
//! An add of many rows goes in pieces: promise, claim, copy, commit. So an adder that is stopped or dies holds few rows.
//! Pieces of two adders alternate; each row is whole.

use super::Table;
use super::layout::{Geometry, LINE, Tally};
use super::protocol::{Claim, ClaimedRows};
use crate::error::{Error, Result};
use crate::segment::Activity;
use crate::segment::header::PAGE;
use crate::segment::lease::LivenessMemo;
use crate::sys::clock::coarse_ns;
use crate::sys::opaque_copy::{can_stream_lines, copy_field, stream_fence, stream_lines};
use crate::sys::prefetch::prefetch_to_write;
use crate::sys::signals;
use crate::sys::sync::{AtomicU64, Ordering, Point, crash_point};
use crate::sys::wait::Deadline;

/// The most rows that one adder has in hand at a time.
pub const PIECE: usize = 64;

/// Of how many rows ahead the lines are fetched.
const AHEAD: usize = 4;
/// A table of this many bytes is filled around the cache. A smaller one may be in it.
const STREAM_BYTES: usize = 64 << 20;
/// Fewer rows than these are not worth it.
const STREAM_ROWS: usize = 8;

/// Where the rows of one field come from: each field of a row in one piece, and so many bytes from one row to the next.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    pub data: *const u8,
    pub stride: isize,
    /// Other bytes for some of the rows.
    pub patch: Option<Patch>,
}

/// Where `mask` is not 0, a row of the field is taken from here.
#[derive(Debug, Clone, Copy)]
pub struct Patch {
    /// A byte for each row.
    pub mask: *const u8,
    pub mask_stride: isize,
    pub data: *const u8,
    pub stride: isize,
}

// SAFETY: the pointers are to bytes that the caller of `Table::add` keeps alive and unchanged while they are read.
unsafe impl Send for Source {}
// SAFETY: as above; they are only read.
unsafe impl Sync for Source {}

impl Source {
    /// Where the bytes of one row are.
    ///
    /// # Safety
    /// The source has that many rows.
    #[inline]
    pub(crate) unsafe fn row(&self, row: usize) -> *const u8 {
        let row = row as isize;
        // SAFETY: the source, its mask and its patch have that many rows, as the caller promises.
        unsafe {
            match &self.patch {
                Some(patch) if *patch.mask.offset(row * patch.mask_stride) != 0 => {
                    patch.data.offset(row * patch.stride)
                }
                _ => self.data.offset(row * self.stride),
            }
        }
    }
}

impl Table {
    /// Copies the rows `done..count` in, and moves `done` as they are committed, also when it fails half-way: with
    /// [`Error::Closed`] when the last learner has left, and [`Error::Timeout`] when the time was over before there was
    /// room, because every row is being written by others.
    ///
    /// # Safety
    /// There is one source for each field, with `count` rows (and a mask and a patch of as many), alive and unchanged.
    pub unsafe fn add(
        &self,
        sources: &[Source],
        done: &mut usize,
        count: usize,
        deadline: Deadline,
    ) -> Result<()> {
        assert_eq!(sources.len(), self.mapped.geometry.fields.len(), "one source for each field");
        let owner = self.owner()?;
        if self.is_closed() {
            return Err(Error::Closed);
        }
        let protocol = self.protocol();
        let is_dead = |owner| !self.seat.is_alive(owner);
        let mut memo = LivenessMemo::of(&is_dead);
        let piece = PIECE.min(self.mapped.geometry.capacity.div_ceil(4));
        let (mut passed, before) = (0, *done);
        while *done < count {
            let mut positions = protocol.promise(piece.min(count - *done));
            while let Some(claim) = protocol.claim(owner, positions.clone(), |other| memo.is_dead(other)) {
                passed += (claim.positions().start - positions.start) as usize;
                positions.start = claim.positions().end;
                // SAFETY: the claim is ours (I1); the sources have `count` rows, as the caller promises.
                unsafe { self.fill(sources, *done, &claim) };
                let rows = *claim;
                protocol.commit(claim);
                *done += rows.len;
                self.tally(owner).note_commit(rows, std::mem::take(&mut passed));
            }
            let missed = positions.end.wrapping_sub(positions.start) as usize;
            passed += missed;
            if missed > 0 && signals::are_noted() {
                return Err(Error::Interrupted); // A lap of a large table takes a while.
            }
            if passed >= self.mapped.geometry.capacity {
                // A whole lap without a row: living adders are writing all of them.
                let room = self.wait(Activity::WaitRoom, deadline, || {
                    memo = LivenessMemo::of(&is_dead);
                    let room = protocol.has_room(|other| memo.is_dead(other));
                    room.map(|room| room.then_some(())).map_err(|damage| self.damaged(damage))
                })?;
                room.ok_or(Error::Timeout)?;
                passed = 0;
            }
        }
        self.seat.record().account.note_commit(*done - before, coarse_ns(), 0);
        Ok(())
    }

    /// Copies the rows of a claim, one by one: each line of the table is written once.
    ///
    /// # Safety
    /// The claim is ours, and the sources have as many rows from `from` on.
    #[inline]
    unsafe fn fill(&self, sources: &[Source], from: usize, claim: &Claim) {
        // SAFETY: as the caller promises.
        unsafe {
            if self.streams_rows() && claim.len >= STREAM_ROWS {
                self.fill_streaming(sources, from, claim);
            } else {
                self.fill_cached(sources, from, claim);
            }
        }
        crash_point(Point::RowsWritten);
    }

    /// # Safety
    /// As for `fill`.
    unsafe fn fill_cached(&self, sources: &[Source], from: usize, claim: &Claim) {
        let stride = self.mapped.geometry.stride;
        for (from, row) in (from..).zip(claim.rows()) {
            let place = self.row(row);
            if row + AHEAD < claim.rows().end {
                let ahead = place.wrapping_add(AHEAD * stride);
                (0..stride.min(PAGE))
                    .step_by(LINE)
                    .for_each(|line| prefetch_to_write(ahead.wrapping_add(line)));
            }
            // SYNC table.turn: these stores come after the Release fence in `claim`, and are atomic or unseen by the compiler
            // (C1 of `opaque_copy`), because readers copy the same bytes now and then. Those throw away what they copied (I3).
            // SAFETY: the row is ours (I1).
            unsafe { self.pack(sources, from, place) };
        }
    }

    /// By way of a row in the cache, from where whole lines go around it: a plain copy would first read every line of the table
    /// that it is about to overwrite.
    ///
    /// # Safety
    /// As for `fill`; [`streams_rows`](Self::streams_rows).
    unsafe fn fill_streaming(&self, sources: &[Source], from: usize, claim: &Claim) {
        let mut stage = RowBuffer([0; PAGE]);
        for (from, row) in (from..).zip(claim.rows()) {
            let stage = stage.0.as_mut_ptr();
            // SAFETY: a row fits the stage, which is ours alone, and is whole lines long, as the table's rows are. The place is
            // ours by a claim (I1): a locked instruction, before which no such store is seen (I3).
            unsafe {
                self.pack(sources, from, stage);
                stream_lines(self.row(row), stage, self.mapped.geometry.stride / LINE);
            }
        }
        stream_fence(); // Before `commit` (I2).
    }

    /// Whether rows are whole lines, small, and in a table that no cache holds.
    fn streams_rows(&self) -> bool {
        let Geometry { stride, capacity, .. } = self.mapped.geometry;
        stride.is_multiple_of(LINE)
            && stride <= PAGE
            && capacity * stride >= STREAM_BYTES
            && can_stream_lines()
    }

    /// Copies one row, field by field.
    ///
    /// # Safety
    /// `place` has room for a row, is ours, and the sources have a row `from`.
    #[inline]
    unsafe fn pack(&self, sources: &[Source], from: usize, place: *mut u8) {
        for (source, field) in sources.iter().zip(&self.mapped.geometry.fields) {
            // SAFETY: the field lies in the row; the rest is as the caller promises.
            unsafe { copy_field(place.add(field.offset), source.row(from), field.bytes) };
            crash_point(Point::RowHalfWritten);
        }
    }
}

/// One row, on the lines that it has in the table.
#[repr(align(64))]
struct RowBuffer([u8; PAGE]);

impl Tally {
    /// Counts a run that was committed, and the rows that were passed over before it.
    #[inline]
    fn note_commit(&self, rows: ClaimedRows, passed: usize) {
        let note = |counter: &AtomicU64, number: usize| {
            if number > 0 {
                counter.fetch_add(number as u64, Ordering::Relaxed);
            }
        };
        note(&self.added, rows.len);
        note(&self.overwritten, rows.overwritten);
        note(&self.recovered, rows.recovered);
        note(&self.skipped, passed);
    }
}
