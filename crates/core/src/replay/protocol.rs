//! The table's state machine: atomics only, no system call but those of event counts, no payload. Loom runs this very code.
//!
//! ```text
//! row   Empty | Ready, of an older lap ──claim──▶ Writing(owner) ──commit──▶ Ready
//!         ▲                                        │    ▲
//!         ├── given back, or the seat is swept ────┤    │ claimed again, for a later lap
//!         └────────────────────────────────────────┘    └── owner dead
//! ```
//!
//! I1  A row's bytes are written only by the owner named in its word, while that says Writing. A word that says so is
//!     changed only by its owner as long as that lives; the kernel says whether it does.
//! I2  Ready is stored after every byte (release); a reader loads it before it copies any (acquire).
//! I3  A reader keeps what it copied only if the word is the same afterwards. A claim is followed by a release fence before
//!     the first byte, and the reader's second look by an acquire fence after the last one; so a copy that holds a byte of
//!     a later claim does not find the old word. A word never comes back: each claim is of a later lap than the last.
//! I4  A claim for lap *l* succeeds only on a word that is older than *l*. So a row that is whole is replaced only by one
//!     that was promised a position at least one lap later, and an adder that slept through a lap takes nothing with its
//!     old view.
//! I5  `head` is a hint. A position that was promised and never claimed, because its adder died or came too late, leaves the
//!     row as it was, for one lap more.
//! I6  A row that a living adder is writing, stopped or not, is passed over. One whose writer is dead is claimed like any
//!     other. Only an adder that meets such a row asks the kernel.
//! I7  `settled` counts rows that were Ready when they were counted and not given up since: giving a row up lowers it
//!     first. It never counts a row that was not written, or that is known to be lost; a row that was counted once still
//!     counts while it is replaced.

use super::layout::{Control, Lap, RowKind, RowWord, Settled};
use crate::error::Damage;
use crate::segment::{Owned, Owner};
use crate::sys::sync::{AtomicU64, Ordering, Point, crash_point, fence};
use std::ops::Range;

/// A run of adjacent rows that one adder owns, until it is committed or aborted.
pub type Claim = Owned<ClaimedRows>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimedRows {
    /// Of the first row.
    pub position: u64,
    pub row: usize,
    pub len: usize,
    pub lap: Lap,
    pub owner: Owner,
    /// How many of the rows were whole before.
    pub overwritten: usize,
    /// How many of the rows were taken over from the dead.
    pub recovered: usize,
}

/// The words of one table, wherever they lie: in a segment, or on loom's heap.
#[derive(Debug, Clone, Copy)]
pub struct Protocol<'a> {
    pub control: &'a Control,
    pub words: &'a [AtomicU64],
}

impl Protocol<'_> {
    pub fn capacity(&self) -> usize {
        self.words.len()
    }

    // ── adders ─────────────────────────────────────────────────────────────────────────────────────────────────

    /// Moves the head past `want` positions. They are promised, not owned (I5).
    #[inline]
    pub fn promise(&self, want: usize) -> Range<u64> {
        let first = self.control.write.head.fetch_add(want as u64, Ordering::Relaxed);
        crash_point(Point::RowsPromised);
        first..first.wrapping_add(want as u64) // None at all where the numbers end: `has_room` calls that damage.
    }

    /// Claims the first run of adjacent rows in `positions` that can be had. What lies before it was passed over (I4, I6).
    #[inline]
    pub fn claim(
        &self,
        owner: Owner,
        positions: Range<u64>,
        mut is_dead: impl FnMut(Owner) -> bool,
    ) -> Option<Claim> {
        let capacity = self.capacity() as u64;
        let mut row = (positions.start % capacity) as usize;
        let mut lap = Lap::new(positions.start / capacity + 1);
        let mut claim: Option<ClaimedRows> = None;
        for position in positions {
            if row == self.capacity() {
                if claim.is_some() {
                    break; // A run does not go round.
                }
                (row, lap) = (0, lap.next());
            }
            match (self.claim_row(row, lap, owner, &mut is_dead), &mut claim) {
                (Some(was), Some(claim)) => claim.add_row(was),
                (Some(was), None) => {
                    let (len, overwritten, recovered) = (0, 0, 0);
                    let mut first = ClaimedRows { position, row, len, lap, owner, overwritten, recovered };
                    first.add_row(was);
                    claim = Some(first);
                }
                (None, Some(_)) => break,
                (None, None) => {}
            }
            if claim.is_some() {
                crash_point(Point::RowsPartlyClaimed);
            }
            row += 1;
        }
        // SYNC table.turn: Release fence here, Acquire fence in `is_unchanged`. The claims come before the bytes (I3).
        fence(Ordering::Release);
        claim.map(Owned::new)
    }

    /// The one step by which a row changes hands. Gives what it was.
    #[inline]
    fn claim_row(
        &self,
        row: usize,
        lap: Lap,
        owner: Owner,
        is_dead: &mut impl FnMut(Owner) -> bool,
    ) -> Option<RowKind> {
        let word = &self.words[row];
        let ours = RowWord::new(lap, RowKind::Writing, owner).pack();
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let there = RowWord::unpack(seen);
            if !there.lap.is_before(lap) || (there.kind == RowKind::Writing && !is_dead(there.owner)) {
                return None;
            }
            // SYNC table.ready: Acquire here, Release in `commit` and `give_up`. The last writer's bytes come before ours.
            match word.compare_exchange(seen, ours, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(there.kind),
                Err(now) => seen = now,
            }
        }
    }

    /// Whether there is a row that is not in the hands of the living. Every row was claimed for a position that was promised,
    /// so that the next promise of it is for a later lap (I4). One that is not, because the head or the word is wrong, is
    /// damage: an adder that waits for it would be promised rows for ever, and claim none.
    pub fn has_room(&self, mut is_dead: impl FnMut(Owner) -> bool) -> Result<bool, Damage> {
        for (row, word) in self.words.iter().enumerate() {
            // SYNC table.ready: Acquire here, Release in `commit` and `give_up`. The promise of it came before that, so the
            // head that `next_lap` loads is behind it.
            let there = RowWord::unpack(word.load(Ordering::Acquire));
            if there.kind == RowKind::Writing && !is_dead(there.owner) {
                continue;
            }
            if !there.lap.is_before(self.next_lap(row)) {
                return Err(Damage("its head promises rows for a lap that they have seen"));
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// For which lap a row will be promised next.
    fn next_lap(&self, row: usize) -> Lap {
        let (head, capacity) = (self.control.write.head.load(Ordering::Relaxed), self.capacity() as u64);
        Lap::new(head / capacity + 1 + ((row as u64) < head % capacity) as u64)
    }

    /// Publishes a run. Every byte of it is written.
    #[inline]
    pub fn commit(&self, claim: Claim) {
        let ready = RowWord::new(claim.lap, RowKind::Ready, claim.owner).pack();
        for word in &self.words[claim.rows()] {
            // SYNC table.ready: Release here, Acquire in `begin_read` and `claim_row`. Publishes the bytes (I2).
            word.store(ready, Ordering::Release);
            crash_point(Point::RowsPartlyCommitted);
        }
        crash_point(Point::RowsCommitted);
        self.control.changed.notify_if_waiting();
    }

    /// Gives a run back unwritten, or half written: what was in it is gone.
    pub fn abort(&self, claim: Claim) {
        let writing = RowWord::new(claim.lap, RowKind::Writing, claim.owner).pack();
        for row in claim.rows() {
            self.give_up(row, writing);
        }
        self.control.changed.notify_if_waiting();
    }

    /// Makes a row that says `writing` Empty. The caller owns it, or knows that its owner is dead. True when it did.
    pub fn give_up(&self, row: usize, writing: u64) -> bool {
        self.unsettle(row);
        crash_point(Point::RowUnsettled);
        let empty = RowWord { kind: RowKind::Empty, ..RowWord::unpack(writing) }.pack();
        // SYNC table.ready: Release here, Acquire in `claim_row`.
        self.words[row].compare_exchange(writing, empty, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    // ── readers ────────────────────────────────────────────────────────────────────────────────────────────────

    /// How many rows, from the first on, were ever promised. Those behind are Empty.
    #[inline]
    pub fn promised_rows(&self) -> usize {
        self.control.write.head.load(Ordering::Relaxed).min(self.capacity() as u64) as usize
    }

    /// The word of a row, if the row is whole. Copy it, then ask [`is_unchanged`](Self::is_unchanged).
    #[inline]
    pub fn begin_read(&self, row: usize) -> Option<u64> {
        // SYNC table.ready: Acquire here, Release in `commit`. The bytes are there (I2).
        let word = self.words[row].load(Ordering::Acquire);
        RowWord::is_ready(word).then_some(word)
    }

    /// Whether the row was not claimed since [`begin_read`](Self::begin_read): then what was copied in between is whole.
    #[inline]
    pub fn is_unchanged(&self, row: usize, word: u64) -> bool {
        // SYNC table.turn: Acquire fence here, Release fence in `claim`. A byte of a later claim shows its word (I3).
        fence(Ordering::Acquire);
        self.words[row].load(Ordering::Relaxed) == word
    }

    /// Whether an adder is writing over a row, of the first `reach`, that may have been whole before.
    pub fn is_being_replaced(&self, reach: usize) -> bool {
        self.words[..reach].iter().any(|word| {
            let there = RowWord::unpack(word.load(Ordering::Relaxed));
            there.kind == RowKind::Writing && there.lap != Lap::new(1)
        })
    }

    /// Counts the rows that are whole, or about to be replaced by a whole one (I7). Cheap where no row is missing: what was
    /// counted once is not looked at again.
    pub fn count(&self) -> usize {
        // SYNC table.settled: Acquire here, AcqRel in `unsettle`. A row given up before is not seen Ready any more.
        let word = self.control.read.settled.load(Ordering::Acquire);
        let Settled { repairs, rows: settled } = Settled::unpack(word);
        let (reach, settled) = (self.promised_rows(), settled.min(self.capacity()));
        if settled >= reach {
            return settled;
        }
        let (mut count, mut prefix) = (settled, settled);
        for (row, word) in (settled..reach).zip(&self.words[settled..reach]) {
            let ready = RowWord::is_ready(word.load(Ordering::Relaxed));
            count += ready as usize;
            prefix += (ready && prefix == row) as usize;
        }
        if prefix > settled {
            let moved = Settled { repairs, rows: prefix }.pack();
            // Fails when a row was given up, or another was faster; the next call counts again. The words are the truth.
            let settled = &self.control.read.settled;
            let _ = settled.compare_exchange(word, moved, Ordering::Relaxed, Ordering::Relaxed);
        }
        count
    }

    /// From now on `row` is not counted before it is seen Ready again (I7).
    fn unsettle(&self, row: usize) {
        let settled = &self.control.read.settled;
        let mut word = settled.load(Ordering::Relaxed);
        loop {
            let Settled { repairs, rows } = Settled::unpack(word);
            let lowered = Settled { repairs: repairs + 1, rows: rows.min(row) }.pack();
            // SYNC table.settled: AcqRel here, Acquire in `count`.
            match settled.compare_exchange(word, lowered, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }
}

impl ClaimedRows {
    /// The positions that were promised for the rows of the run.
    #[inline]
    pub fn positions(&self) -> Range<u64> {
        self.position..self.position + self.len as u64
    }

    /// The rows of the run.
    #[inline]
    pub fn rows(&self) -> Range<usize> {
        self.row..self.row + self.len
    }

    fn add_row(&mut self, was: RowKind) {
        self.len += 1;
        self.overwritten += (was == RowKind::Ready) as usize;
        self.recovered += (was == RowKind::Writing) as usize;
    }
}
