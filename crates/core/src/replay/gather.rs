//! Sampling: rows drawn uniformly and copied out, whole into one block, or each field into an array of its own. And
//! [`Table::copy_whole`], which draws nothing: what is in the table, for a file.
//!
//! A row that is not whole when it is drawn, or does not stay whole while it is copied, is drawn again. So every row of a
//! batch is whole, and each whole row is as likely as any other.

use super::Table;
use super::draw::RandomStream;
use super::protocol::Protocol;
use crate::error::{Error, Result};
use crate::sys::fork::generation;
use crate::sys::opaque_copy::copy_opaque;
use crate::sys::parallel::{default_threads, for_each_parallel};
use crate::sys::prefetch::{prefetch, prefetch_all};
use crate::sys::sync::{AtomicU64, AtomicUsize, Ordering};
use std::ops::Range;
use std::sync::OnceLock;

/// Rows are asked for this many bytes before they are copied, so that memory answers in the meantime.
const AHEAD_BYTES: usize = 4096;
/// As many rows ahead at least, and at most.
const AHEAD_ROWS: Range<usize> = 2..32;
/// A batch is shared among threads when each has this much to copy: starting one costs as much as copying an eighth of it.
const THREAD_BYTES: usize = 1 << 20;
/// How many parts of a batch there are for each thread: one that starts late finds less to do.
const PARTS: usize = 8;
/// Draws that fail one after the other before all rows are looked at, and looks before we give up. A table of many rows is
/// looked through less often: rows that many adders replace are few, so a large table has others, unless it is damaged.
const UNCHECKED_DRAWS: u64 = 32;
const MAX_SCANS: Range<u64> = 16..10_000;
const MAX_SCANNED_ROWS: u64 = 1 << 26;

/// Which bytes of every row go where: a field into its array, or the whole row into a block.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// In the row.
    pub offset: usize,
    pub bytes: usize,
    /// For the first row of the batch.
    pub data: *mut u8,
    /// From one row of the batch to the next.
    pub stride: usize,
}

// SAFETY: the pointers are to memory that the caller of `Sampler::sample` owns; each thread writes rows of its own.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}

/// Draws the rows of one batch after the other. Threads may share it; each batch has numbers of its own.
#[derive(Debug)]
pub struct Sampler {
    seed: u64,
    /// Without a seed of the user's, a forked child must not repeat what its parent draws.
    chosen: bool,
    next: AtomicU64,
}

impl Sampler {
    /// The same seed draws the same rows from the same table. `None`: from the operating system.
    pub fn new(seed: Option<u64>) -> Sampler {
        use std::hash::{BuildHasher, RandomState};
        let random = || RandomState::new().hash_one(std::process::id());
        Sampler { seed: seed.unwrap_or_else(random), chosen: seed.is_some(), next: AtomicU64::new(0) }
    }

    /// Numbers for so many draws: the stream, and the first counter.
    pub(crate) fn reserve(&self, draws: u64) -> (RandomStream, u64) {
        (self.stream(), self.next.fetch_add(draws, Ordering::Relaxed))
    }

    fn stream(&self) -> RandomStream {
        let stream = RandomStream::of(self.seed);
        if self.chosen { stream } else { stream.branch(generation() as u64) }
    }

    /// Copies `batch` rows, drawn uniformly with replacement. [`Error::Empty`] when there are none; then nothing was
    /// written that counts.
    ///
    /// # Safety
    /// Each piece has room for `batch` rows.
    pub unsafe fn sample(&self, table: &Table, batch: usize, pieces: &[Piece]) -> Result<()> {
        let inside = |piece: &Piece| piece.offset + piece.bytes <= table.mapped.geometry.row_bytes;
        assert!(pieces.iter().all(inside), "pieces lie in the row");
        let owner = table.owner()?;
        if batch == 0 {
            return Ok(());
        }
        let reach = table.protocol().promised_rows();
        if reach == 0 {
            return Err(Error::Empty { name: table.name().to_owned() });
        }
        let (stream, first) = self.reserve(batch as u64);
        let draws = Draws { stream, first, reach };
        let redrawn = AtomicUsize::new(0);
        // SAFETY: as the caller promises; each part is of other rows.
        let gather = |part: Range<usize>| unsafe { table.gather(draws, part, pieces, &redrawn) };
        let threads = threads(batch * table.mapped.geometry.row_bytes);
        let done = if threads == 1 {
            gather(0..batch)
        } else {
            let parts = batch.div_ceil(PARTS * threads);
            let parts: Vec<_> = (0..batch).step_by(parts).map(|n| n..(n + parts).min(batch)).collect();
            let failed = OnceLock::new();
            for_each_parallel(&parts, threads, |part| {
                gather(part.clone()).unwrap_or_else(|error| _ = failed.set(error));
            });
            failed.into_inner().map_or(Ok(()), Err)
        };
        let tally = table.tally(owner);
        tally.redrawn.fetch_add(redrawn.load(Ordering::Relaxed) as u64, Ordering::Relaxed);
        done?;
        tally.sampled.fetch_add(batch as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// How many threads a batch of so many bytes is worth.
fn threads(bytes: usize) -> usize {
    let worth = bytes / THREAD_BYTES;
    if worth > 1 { worth.min(default_threads()) } else { 1 }
}

/// Which rows a batch is made of.
#[derive(Debug, Clone, Copy)]
struct Draws {
    stream: RandomStream,
    /// The number of the first draw of this batch.
    first: u64,
    /// Rows from which to draw.
    reach: usize,
}

impl Draws {
    #[inline]
    fn row(&self, place: usize) -> usize {
        self.stream.below(self.reach, self.first + place as u64)
    }
}

impl Table {
    /// Copies the rows of one part of a batch.
    ///
    /// # Safety
    /// Each piece has room for every place in `part`, to which only this call writes.
    unsafe fn gather(
        &self,
        draws: Draws,
        part: Range<usize>,
        pieces: &[Piece],
        redrawn: &AtomicUsize,
    ) -> Result<()> {
        let protocol = self.protocol();
        let row_bytes = self.mapped.geometry.row_bytes;
        let ahead = AHEAD_BYTES.div_ceil(row_bytes).clamp(AHEAD_ROWS.start, AHEAD_ROWS.end);
        let soon = |place: usize| {
            if place < part.end {
                let row = draws.row(place);
                prefetch(protocol.words[row..].as_ptr().cast());
                prefetch_all(self.row(row), row_bytes);
            }
        };
        part.clone().take(ahead).for_each(soon);
        for place in part.clone() {
            soon(place + ahead);
            // SAFETY: as the caller promises.
            if !unsafe { self.copy_row(&protocol, draws.row(place), place, pieces) } {
                // SAFETY: as the caller promises.
                unsafe { self.redraw(&protocol, draws, place, pieces, redrawn)? };
            }
        }
        Ok(())
    }

    /// Copies those of `rows` that are whole to `block`, one after the other, and says how many they are.
    ///
    /// # Safety
    /// `block` has room for all of them.
    pub unsafe fn copy_whole(&self, rows: Range<usize>, block: *mut u8) -> usize {
        let bytes = self.mapped.geometry.row_bytes;
        let piece = Piece { offset: 0, bytes, data: block, stride: bytes };
        let protocol = self.protocol();
        let mut place = 0;
        for row in rows {
            // SAFETY: the place is at most the number of rows before this one, for which there is room.
            place += usize::from(unsafe { self.copy_row(&protocol, row, place, &[piece]) });
        }
        place
    }

    /// Copies a row to its place in the batch. False when the row is not whole, or did not stay so.
    ///
    /// # Safety
    /// As for [`gather`](Self::gather).
    #[inline]
    unsafe fn copy_row(&self, protocol: &Protocol<'_>, row: usize, place: usize, pieces: &[Piece]) -> bool {
        let Some(word) = protocol.begin_read(row) else { return false };
        let from = self.row(row);
        for piece in pieces {
            // SAFETY: the piece lies in the row, and has room for this one. An adder may write to the row meanwhile, which the
            // compiler must not know (C1): then these bytes mean nothing, and the look below says so (I3).
            unsafe {
                copy_opaque(piece.data.add(place * piece.stride), from.add(piece.offset), piece.bytes);
            }
        }
        protocol.is_unchanged(row, word)
    }

    /// Draws for one place until a whole row comes: first blindly, then from those that are whole.
    ///
    /// # Safety
    /// As for [`gather`](Self::gather).
    #[cold]
    unsafe fn redraw(
        &self,
        protocol: &Protocol<'_>,
        draws: Draws,
        place: usize,
        pieces: &[Piece],
        redrawn: &AtomicUsize,
    ) -> Result<()> {
        let again = draws.stream.branch(draws.first + place as u64);
        for attempt in 0..UNCHECKED_DRAWS {
            redrawn.fetch_add(1, Ordering::Relaxed);
            // SAFETY: as the caller promises.
            if unsafe { self.copy_row(protocol, again.below(draws.reach, attempt), place, pieces) } {
                return Ok(());
            }
        }
        for look in 0..(MAX_SCANNED_ROWS / draws.reach as u64).clamp(MAX_SCANS.start, MAX_SCANS.end) {
            let whole: Vec<usize> =
                (0..draws.reach).filter(|&row| protocol.begin_read(row).is_some()).collect();
            if whole.is_empty() && !protocol.is_being_replaced(draws.reach) {
                return Err(Error::Empty { name: self.name().to_owned() });
            }
            if !whole.is_empty() {
                redrawn.fetch_add(1, Ordering::Relaxed);
                let row = whole[again.below(whole.len(), UNCHECKED_DRAWS + look)];
                // SAFETY: as the caller promises.
                if unsafe { self.copy_row(protocol, row, place, pieces) } {
                    return Ok(());
                }
            }
            std::thread::yield_now(); // The adder may need this core.
        }
        Err(Error::Overrun { name: self.name().to_owned(), capacity: self.mapped.geometry.capacity as u64 })
    }
}
