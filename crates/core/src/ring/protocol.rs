//! The ring's state machine: atomics only, no system call but those of event counts, no payload. Loom runs this very code.
//!
//! ```text
//! slot    Free | older ──claim──▶ Claimed(owner) ──commit──▶ Ready ─────────▶ (older, once the batch is released)
//!           ▲                        │    └─ batch sealed while free ──▶ Skipped ─┘
//!           └── abort, or owner dead ┘
//!
//! buffer  Free ──open──▶ Filling ──take──▶ Taken(owner) ──release──▶ Free
//!                          ▲ │               │
//!                          │ └─ drop oldest ─┼──▶ Free
//!                          └─ owner dead ────┘
//! ```
//!
//! I1  A slot's payload and stamp are written only by the owner named in its claim word.
//! I2  Ready is stored after every payload byte (release); a consumer loads it before it reads any (acquire).
//! I3  A slot word names its batch. A claim for batch *b* succeeds only on a word that is older than *b*, or Free in
//!     *b*; so a producer that slept through any number of batches cannot claim with an old view.
//! I4  `open` is the one truth about which batch is filled and where. Only a CAS on it turns a Free buffer into
//!     another batch's, so a buffer seen Free stays Free while `open` has not moved. Marking the buffer Filling is a
//!     second step that any process may do; it is done before `open` moves on.
//! I5  A batch is complete when each of its slots is Ready or Skipped. The words are the only record of that: there is
//!     no counter that a death could leave wrong. Once complete, only the buffer word decides its fate, by one CAS:
//!     taken by one consumer, or dropped by one producer.
//! I6  A buffer is Free only after its release (release), and a producer sees it Free before it writes (acquire):
//!     no process writes under a reader.
//! I7  Consumers take the oldest *complete* batch. One that waits for a writer is overtaken, though not at once: the
//!     consumer decides how long it waits for the sake of order, and a writer that is stuck holds up its batch only.
//! I8  Wake-ups. A producer that commits a batch's last slot, or the slot that is named as its target, while a consumer
//!     waits, either finds the batch complete and notifies, or names another target and sees it unsettled after that. A
//!     consumer sleeps only after it saw its targets unsettled with the announcement and the targets out.
//! I9  `cursor`, `holes` and `target` are hints. Wrong ones cost time: a scan, or a liveness poll.

use super::layout::{
    ANY_SLOT, BatchNo, Buffer, BufferKind, BufferWord, Control, NUMBERED, Place, Slot, SlotKind, SlotWord,
};
pub use crate::error::Damage;
use crate::segment::sessions::SessionEntry;
use crate::segment::{Owned, Owner};
use crate::sys::prefetch::prefetch_to_write;
use crate::sys::sync::{AtomicU64, Ordering, Point, crash_point, fence};
use std::ops::Range;

/// How many slots ahead of its claims a run fetches: 16 lines, about as many as a core waits for at once.
const AHEAD: usize = 32;

type Result<T> = std::result::Result<T, Damage>;

/// A run of adjacent slots that one producer owns, until it is committed or aborted.
pub type Claim = Owned<ClaimedSlots>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimedSlots {
    pub batch: BatchNo,
    pub buffer: usize,
    /// The first slot of the run, in its buffer.
    pub slot: usize,
    pub(super) len: usize,
    pub owner: Owner,
}

#[allow(clippy::len_without_is_empty)] // A run has at least one slot.
impl ClaimedSlots {
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// A producer that claims, and what it keeps between two claims.
#[derive(Debug, Clone, Copy)]
pub struct Claimant<'a> {
    pub owner: Owner,
    /// A [`Place`]: the next slot of the block that it is filling. A hint of its own.
    pub lane: &'a AtomicU64,
    /// How often another producer was faster.
    pub retries: &'a AtomicU64,
}

impl Claimant<'_> {
    /// Notes where to go on; a place at the start of a block is none.
    #[inline]
    fn resume_at(&self, batch: BatchNo, index: usize) {
        self.lane.store(Place { batch, index }.pack(), Ordering::Relaxed);
    }
}

/// A batch that one consumer owns, until it is released or given back.
pub type Taken = Owned<TakenBatch>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakenBatch {
    pub batch: BatchNo,
    pub buffer: usize,
    /// Ready slots; fewer than the batch size when it was closed early.
    pub ready: usize,
    /// Whether an older batch was passed over because it is not complete.
    pub overtook: bool,
    pub owner: Owner,
}

/// Whether a batch can be taken.
enum Progress {
    Complete {
        ready: usize,
    },
    /// The highest slot that is not settled.
    Waiting {
        slot: usize,
    },
}

/// A batch that is not complete.
struct Unfinished {
    batch: BatchNo,
    committed: usize,
    claimed: usize,
    /// Closed early; it waits for its writers.
    is_sealed: bool,
}

/// The words of one ring, wherever they lie: in a segment, or on loom's heap.
#[derive(Debug, Clone, Copy)]
pub struct Protocol<'a> {
    pub control: &'a Control,
    pub buffers: &'a [Buffer],
    pub sessions: &'a [SessionEntry],
    pub slots: &'a [Slot],
    pub batch_size: usize,
    /// How many slots the cursor moves for a producer of single samples: as many small ones as keep two producers off
    /// each other's cache lines. A power of two.
    pub block: usize,
}

impl<'a> Protocol<'a> {
    /// Makes zeroed words into an empty ring, before it has a name.
    pub fn initialise(&self) {
        let first = Place { batch: BatchNo::FIRST, index: 0 };
        self.control.write.open.store(first.pack(), Ordering::Relaxed);
        self.control.write.cursor.store(first.pack(), Ordering::Relaxed);
        self.buffers[0].word.store(BufferWord::filling(BatchNo::FIRST).pack(), Ordering::Relaxed);
    }

    /// The batch that is being filled, and its buffer.
    #[inline(always)]
    pub(super) fn open(&self) -> Place {
        // SYNC ring.open: Acquire here, AcqRel in `open_next`. The buffer was released before it was opened (I6).
        Place::unpack(self.control.write.open.load(Ordering::Acquire))
    }

    /// The slots of one buffer.
    pub fn slots_of(&self, buffer: usize) -> Result<&'a [Slot]> {
        let first = buffer * self.batch_size;
        self.slots.get(first..first + self.batch_size).ok_or(Damage("a buffer index is out of range"))
    }

    // ── producers ──────────────────────────────────────────────────────────────────────────────────────────────

    /// Claims up to `want` adjacent slots; `None` when the ring is full. Always inlined, like all that one `send` runs through:
    /// a claim that is handed on through memory costs more than it took to make.
    #[inline(always)]
    pub fn try_claim(&self, me: Claimant<'_>, want: usize) -> Result<Option<Claim>> {
        if self.control.write.holes.load(Ordering::Relaxed) != 0
            && let Some(claim) = self.claim_hole(me)?
        {
            return Ok(Some(claim));
        }
        loop {
            let open = self.open();
            let slots = self.slots_of(open.index)?;
            if let Some(claim) = self.claim_in_lane(slots, open, me, want) {
                return Ok(Some(claim));
            }
            if let Some(claim) = self.claim_at_cursor(slots, open, me, want) {
                return Ok(Some(claim));
            }
            if !self.open_next(open)? {
                return Ok(None);
            }
        }
    }

    /// Whether to try again, after the ring was full with the batch `open` being filled. It promises nothing.
    pub fn may_have_room(&self, open: u64) -> bool {
        let write = &self.control.write;
        write.open.load(Ordering::Relaxed) != open
            || write.holes.load(Ordering::Relaxed) != 0
            || self.has_free_buffer()
    }

    /// A hint: only a claim makes sure.
    pub(super) fn has_free_buffer(&self) -> bool {
        let mut words = self.buffers.iter().map(|line| BufferWord::unpack(line.word.load(Ordering::Relaxed)));
        words.any(|word| word.kind == BufferKind::Free)
    }

    /// Goes on in the block that the cursor gave it last, a run too: so one producer's samples stay in order.
    #[inline(always)]
    fn claim_in_lane(&self, slots: &[Slot], open: Place, me: Claimant<'_>, want: usize) -> Option<Claim> {
        let lane = Place::unpack(me.lane.load(Ordering::Relaxed));
        if lane.batch != open.batch || lane.index & (self.block - 1) == 0 {
            return None;
        }
        let end = self.block_end(lane.index);
        let claim = self.claim_run(slots, open, me, lane.index..end, want);
        me.resume_at(open.batch, claim.as_ref().map_or(0, |claim| claim.slot + claim.len));
        claim
    }

    /// Moves the cursor past a run, or past a block for a producer of single samples, and claims in there. The words decide:
    /// what it does not claim, because it died or has not come to it, is left over for others.
    #[inline]
    fn claim_at_cursor(&self, slots: &[Slot], open: Place, me: Claimant<'_>, want: usize) -> Option<Claim> {
        let cursor = &self.control.write.cursor;
        loop {
            let word = cursor.load(Ordering::Relaxed);
            let from = self.index_in(Place::unpack(word), open)?;
            if from >= self.batch_size {
                return self.claim_left_over(slots, open, me, want, from - self.batch_size);
            }
            let end =
                if want == 1 { self.block_end(from) } else { self.batch_size.min(from.saturating_add(want)) };
            let next = Place { batch: open.batch, index: end };
            if cursor.compare_exchange(word, next.pack(), Ordering::Relaxed, Ordering::Relaxed).is_err() {
                me.retries.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            crash_point(Point::RunPromised);
            if let Some(claim) = self.claim_run(slots, open, me, from..end, want) {
                me.resume_at(open.batch, if want == 1 { claim.slot + 1 } else { 0 });
                return Some(claim);
            }
        }
    }

    /// Where the block of a slot ends.
    #[inline]
    fn block_end(&self, slot: usize) -> usize {
        self.batch_size.min((slot | (self.block - 1)) + 1)
    }

    /// The cursor has passed every slot. It passes them once more, for those that were promised and not claimed.
    fn claim_left_over(
        &self,
        slots: &[Slot],
        open: Place,
        me: Claimant<'_>,
        want: usize,
        from: usize,
    ) -> Option<Claim> {
        if from >= self.batch_size {
            return None;
        }
        let claim = self.claim_run(slots, open, me, from..self.batch_size, want);
        // All before it is claimed, or was and is counted as a hole. A late store costs a second look (I9).
        let seen = claim.as_ref().map_or(self.batch_size, |claim| claim.slot + claim.len);
        let next = Place { batch: open.batch, index: self.batch_size + seen };
        self.control.write.cursor.store(next.pack(), Ordering::Relaxed);
        claim
    }

    /// Where the cursor is in the open batch: in the first round, or beyond the batch size in the second. `None` when it
    /// is in a later batch already.
    #[inline]
    fn index_in(&self, cursor: Place, open: Place) -> Option<usize> {
        if open.batch.is_before(cursor.batch) {
            return None;
        }
        Some(if cursor.batch == open.batch { cursor.index } else { 0 })
    }

    /// Claims the first claimable slot in `range`, and up to `want - 1` after it.
    #[inline(always)]
    fn claim_run(
        &self,
        slots: &[Slot],
        open: Place,
        me: Claimant<'_>,
        range: Range<usize>,
        want: usize,
    ) -> Option<Claim> {
        let end = range.end;
        // The reader has looked at a run's words, so it has their lines; fetched ahead, they do not wait for each other.
        let fetch = |slot: usize| prefetch_to_write((&raw const slots[slot]).cast());
        if want > 1 {
            (range.start..end.min(range.start + AHEAD)).for_each(fetch);
        }
        let slot = range.into_iter().find(|&slot| claim_slot(&slots[slot], open.batch, me))?;
        crash_point(Point::SlotClaimed);
        let mut len = 1;
        while len < want && slot + len < end && claim_slot(&slots[slot + len], open.batch, me) {
            if slot + len + AHEAD < end {
                fetch(slot + len + AHEAD);
            }
            len += 1;
            crash_point(Point::RunPartlyClaimed);
        }
        Some(Owned::new(ClaimedSlots { batch: open.batch, buffer: open.index, slot, len, owner: me.owner }))
    }

    /// Claims a slot that was given back, by its owner or in its name: it comes first, so that its row stays in order.
    #[cold]
    fn claim_hole(&self, me: Claimant<'_>) -> Result<Option<Claim>> {
        let holes = self.control.write.holes.load(Ordering::Relaxed);
        let mut after = None;
        while let Some((buffer, word)) = self.oldest_filling(after)? {
            for (slot, line) in self.slots_of(buffer)?.iter().enumerate() {
                if claim_slot(line, word.batch, me) {
                    crash_point(Point::SlotClaimed);
                    self.count_hole_filled();
                    let (batch, owner) = (word.batch, me.owner);
                    return Ok(Some(Owned::new(ClaimedSlots { batch, buffer, slot, len: 1, owner })));
                }
            }
            after = Some(word.batch);
        }
        // Nothing there: a process died between counting and freeing, or was faster. If it is just about to free the slot,
        // the next liveness poll counts again (I9).
        let _ = self.control.write.holes.compare_exchange(holes, 0, Ordering::Relaxed, Ordering::Relaxed);
        Ok(None)
    }

    fn count_hole_filled(&self) {
        let holes = &self.control.write.holes;
        let _ = holes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }

    /// Moves on from a batch that has no slot left. False when there is no free buffer for the next one.
    #[cold]
    fn open_next(&self, open: Place) -> Result<bool> {
        self.assist(open)?;
        let count = self.buffers.len();
        // The open buffer itself comes last: its batch may have been taken and released already.
        for step in 1..=count {
            let index = (open.index + step) % count;
            // SYNC ring.free: Acquire here, Release in `release` and `drop_oldest`. No consumer reads it (I6).
            let word = BufferWord::unpack(self.buffers[index].word.load(Ordering::Acquire));
            if word.kind == BufferKind::Free {
                if open.batch.is_before(word.batch) {
                    // Another producer may have moved on, to a batch that we have not heard of.
                    let damage = Damage("a free buffer is numbered after the open batch");
                    return if self.open() == open { Err(damage) } else { Ok(true) };
                }
                let next = Place { batch: open.batch.next(), index };
                let (word, before) = (&self.control.write.open, open.pack());
                // SYNC ring.open: AcqRel here, Acquire in `open`. A producer that fails sees the choice of another (I4).
                if word.compare_exchange(before, next.pack(), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    crash_point(Point::RingOpened);
                    self.assist(next)?;
                }
                return Ok(true);
            }
        }
        Ok(self.open() != open)
    }

    /// Marks the open buffer as Filling, if the producer that opened it has not done so yet (I4).
    fn assist(&self, open: Place) -> Result<()> {
        let line = self.buffers.get(open.index).ok_or(Damage("a buffer index is out of range"))?;
        // SYNC ring.free: Acquire here, Release in `release` and `drop_oldest` (I6).
        let word = line.word.load(Ordering::Acquire);
        let was = BufferWord::unpack(word);
        if was.kind == BufferKind::Free && was.batch.is_before(open.batch) {
            let filling = BufferWord::filling(open.batch).pack();
            // SYNC ring.filling: Release here, Acquire in `look_for_filling`. `open` moved before the mark (I4). It fails when
            // another process assisted first; an old view fails because the word has moved on to a later batch.
            let _ = line.word.compare_exchange(word, filling, Ordering::AcqRel, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Publishes a run. The payload and the stamps are written.
    #[inline(always)]
    pub fn commit(&self, claim: Claim) {
        let ready = SlotWord::new(claim.batch, SlotKind::Ready, claim.owner).pack();
        let first = claim.buffer * self.batch_size + claim.slot;
        for slot in &self.slots[first..first + claim.len] {
            // SYNC ring.ready: Release here, Acquire in `progress`. Publishes the payload and the stamp (I2).
            slot.word.store(ready, Ordering::Release);
            crash_point(Point::SlotReady);
        }
        // SYNC event.dekker: pairs with the fence in `EventCount::announce` and the one in `aim` (I8).
        fence(Ordering::SeqCst);
        if self.control.readable.has_waiter() {
            self.wake_reader(&claim);
        }
    }

    /// Notifies if the batch is complete. Otherwise names the next slot that the batch waits for, as [`aim`](Self::aim) does, so
    /// that the reader sleeps on.
    #[cold]
    fn wake_reader(&self, claim: &Claim) {
        let line = &self.buffers[claim.buffer];
        let run = claim.slot..claim.slot + claim.len;
        let mut target = line.target.load(Ordering::Relaxed);
        if target != ANY_SLOT && run.end != self.batch_size && !run.contains(&(target as usize)) {
            return;
        }
        let filling = BufferWord::filling(claim.batch).pack();
        let mut named = None;
        // SYNC ring.filling: Acquire here, AcqRel in `assist` and `give_back`.
        while target != ANY_SLOT
            && line.word.load(Ordering::Acquire) == filling
            && let Ok(Progress::Waiting { slot }) = self.progress(claim.buffer, claim.batch)
        {
            if named == Some(slot) {
                return; // The producer that settles that slot comes here.
            }
            // Not over a target that the reader has named meanwhile: it may wait for any commit now.
            let naming =
                line.target.compare_exchange(target, slot as u64, Ordering::Relaxed, Ordering::Relaxed);
            (named, target) = match naming {
                Ok(_) => (Some(slot), slot as u64),
                Err(now) => (None, now),
            };
            // SYNC event.dekker: pairs with the fence in `commit`. The target is out before we look again.
            fence(Ordering::SeqCst);
        }
        // Complete; or the reader takes any commit; or taken meanwhile, and then we may have named a slot of the next batch in there: let them look.
        self.control.readable.notify();
    }

    /// Gives a run back, unwritten or half-written: the next producer may have it.
    pub fn abort(&self, claim: Claim) {
        let first = claim.buffer * self.batch_size + claim.slot;
        let free = SlotWord::free(claim.batch).pack();
        for slot in &self.slots[first..first + claim.len] {
            // Counted first: a hole too many costs a scan, a hole too few would be forgotten.
            self.control.write.holes.fetch_add(1, Ordering::Relaxed);
            crash_point(Point::HoleCounted);
            // SYNC ring.claim: Release here, Acquire in `claim_slot`. We are done writing (I1).
            slot.word.store(free, Ordering::Release);
            // A producer may have looked for the hole in between, found none, and wiped the count.
            if self.control.write.holes.load(Ordering::Relaxed) == 0 {
                self.control.write.holes.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.control.counters.aborted.fetch_add(claim.len as u64, Ordering::Relaxed);
        self.control.writable.notify_if_waiting();
        self.control.readable.notify_if_waiting(); // The batch may be sealed, and complete without this slot.
    }

    /// Whether a forwarder has given numbers to a batch.
    pub fn is_numbered(&self, line: &Buffer, batch: BatchNo) -> bool {
        // SYNC ring.numbered: Acquire here, Release in `Consumer::number`. Publishes `sent_first` (F2).
        line.sent_batch.load(Ordering::Acquire) == NUMBERED | batch.value()
    }

    /// Drops the oldest complete batch that no consumer has taken, and no forwarder has sent; gives back how many samples it held.
    pub fn drop_oldest(&self) -> Result<Option<usize>> {
        let dropped = self.find_complete(&|_| false, |line, word, ready| {
            if self.is_numbered(line, word.batch) {
                return None;
            }
            let free = BufferWord::free(word.batch).pack();
            // SYNC ring.free: Release here, Acquire in `open_next` (I5, I6).
            let won =
                line.word.compare_exchange(word.pack(), free, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            won.then_some(ready)
        })?;
        if dropped.is_some() {
            self.control.writable.notify_if_waiting();
        }
        Ok(dropped)
    }

    // ── consumers ──────────────────────────────────────────────────────────────────────────────────────────────

    /// Takes the oldest complete batch.
    pub fn try_take(&self, owner: Owner) -> Result<Option<Taken>> {
        self.try_take_unless(owner, |_| false)
    }

    /// Takes the oldest complete batch, unless it would overtake an older one that `must_wait` says to wait for.
    pub fn try_take_unless(
        &self,
        owner: Owner,
        must_wait: impl Fn(BatchNo) -> bool,
    ) -> Result<Option<Taken>> {
        loop {
            let taken = self.find_complete(&must_wait, |line, word, ready| {
                let mine = BufferWord::taken(word.batch, owner).pack();
                // SYNC ring.filling: Acquire here, AcqRel in `assist` and `give_back`; Release here, Acquire in `recover`. The
                // slots' words were loaded with Acquire; this CAS makes the batch ours alone (I5).
                let taking =
                    line.word.compare_exchange(word.pack(), mine, Ordering::AcqRel, Ordering::Relaxed);
                let buffer = self.index_of(line);
                taking.is_ok().then_some(TakenBatch {
                    batch: word.batch,
                    buffer,
                    ready,
                    overtook: false,
                    owner,
                })
            })?;
            let Some(taken) = taken else { return Ok(None) };
            crash_point(Point::BatchTaken);
            if taken.ready == 0 {
                self.release(Owned::new(taken)); // Sealed, and then every claim in it was given back.
                continue;
            }
            let overtook = self.has_older(taken.batch);
            return Ok(Some(Owned::new(TakenBatch { overtook, ..taken })));
        }
    }

    fn index_of(&self, line: &Buffer) -> usize {
        (line as *const Buffer as usize - self.buffers.as_ptr() as usize) / size_of::<Buffer>()
    }

    fn has_older(&self, batch: BatchNo) -> bool {
        self.buffers.iter().any(|line| {
            let word = BufferWord::unpack(line.word.load(Ordering::Relaxed));
            word.kind == BufferKind::Filling && word.batch.is_before(batch)
        })
    }

    /// Calls `claim` on complete batches, oldest first, until it gives something; stops before it would overtake an
    /// unfinished batch of which `must_wait` says so.
    fn find_complete<T>(
        &self,
        must_wait: &impl Fn(BatchNo) -> bool,
        mut claim: impl FnMut(&'a Buffer, BufferWord, usize) -> Option<T>,
    ) -> Result<Option<T>> {
        self.assist(self.open())?;
        let (mut after, mut unfinished) = (None, None);
        while let Some((index, word)) = self.oldest_filling(after)? {
            match self.progress(index, word.batch)? {
                Progress::Waiting { .. } => drop(unfinished.get_or_insert(word.batch)),
                Progress::Complete { .. } if unfinished.is_some_and(must_wait) => return Ok(None),
                Progress::Complete { ready } => {
                    if let Some(found) = claim(&self.buffers[index], word, ready) {
                        return Ok(Some(found));
                    }
                }
            }
            after = Some(word.batch);
        }
        Ok(None)
    }

    /// The oldest batch in a Filling buffer that comes after `after`.
    fn oldest_filling(&self, after: Option<BatchNo>) -> Result<Option<(usize, BufferWord)>> {
        // A batch may be marked behind our back, in a buffer that we have passed, before we come to the next batch in
        // another. But it is marked before the next one is opened (I4): the second look finds it.
        match self.look_for_filling(after)? {
            Some(_) => self.look_for_filling(after),
            None => Ok(None),
        }
    }

    fn look_for_filling(&self, after: Option<BatchNo>) -> Result<Option<(usize, BufferWord)>> {
        let mut oldest: Option<(usize, BufferWord)> = None;
        for (index, line) in self.buffers.iter().enumerate() {
            // SYNC ring.filling: Acquire here, AcqRel in `assist` and `give_back`. Then `open` below is not older (I4).
            let word = BufferWord::unpack(line.word.load(Ordering::Acquire));
            if word.kind != BufferKind::Filling {
                continue;
            }
            // `open` moves before a buffer is marked. Without this, nonsense numbers could make the order circular.
            if self.open().batch.is_before(word.batch) {
                return Err(Damage("a batch is numbered after the one that is open"));
            }
            let in_question = after.is_none_or(|a| a.is_before(word.batch));
            if in_question && oldest.is_none_or(|(_, o)| word.batch.is_before(o.batch)) {
                oldest = Some((index, word));
            }
        }
        Ok(oldest)
    }

    /// Looks at the slots of a batch, from the last to the first. In a sealed batch, closes what is not claimed.
    fn progress(&self, buffer: usize, batch: BatchNo) -> Result<Progress> {
        // SYNC ring.sealed: Acquire here, Release in `seal`.
        let sealed = self.buffers[buffer].sealed.load(Ordering::Acquire) == batch.value();
        let mut ready = 0;
        for (slot, line) in self.slots_of(buffer)?.iter().enumerate().rev() {
            // SYNC ring.ready: Acquire here, Release in `commit` (I2).
            let mut word = line.word.load(Ordering::Acquire);
            while sealed && SlotWord::unpack(word).is_claimable_for(batch) {
                let skipped = SlotWord::skipped(batch).pack();
                match line.word.compare_exchange(word, skipped, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => {
                        crash_point(Point::BatchSealed);
                        word = skipped;
                    }
                    Err(now) => word = now, // A producer was faster, or another consumer.
                }
            }
            let word = SlotWord::unpack(word);
            if !word.is_settled_for(batch) {
                return Ok(Progress::Waiting { slot });
            }
            ready += word.is_ready_for(batch) as usize;
        }
        Ok(Progress::Complete { ready })
    }

    /// Before sleeping: names in every unfinished batch the slot to be woken for. True when all is set and there is
    /// nothing that [`try_take_unless`](Self::try_take_unless) would take; false when there is. The event is announced (I8).
    pub fn aim(&self, must_wait: impl Fn(BatchNo) -> bool) -> Result<bool> {
        loop {
            let (mut moved, mut after, mut unfinished) = (false, None, None);
            self.assist(self.open())?;
            while let Some((index, word)) = self.oldest_filling(after)? {
                match self.progress(index, word.batch)? {
                    Progress::Complete { .. } if unfinished.is_some_and(&must_wait) => {}
                    Progress::Complete { .. } => return Ok(false),
                    Progress::Waiting { slot } => {
                        unfinished.get_or_insert(word.batch);
                        let target = &self.buffers[index].target;
                        if target.load(Ordering::Relaxed) != slot as u64 {
                            target.store(slot as u64, Ordering::Relaxed);
                            moved = true;
                        }
                    }
                }
                after = Some(word.batch);
            }
            if !moved {
                return Ok(true);
            }
            // SYNC event.dekker: pairs with the fence in `commit`. The targets are out before we look again.
            fence(Ordering::SeqCst);
        }
    }

    /// As [`aim`](Self::aim), for the only consumer of a ring, which also takes unfinished batches: any commit wakes it. True when
    /// there is no committed sample that it has not taken.
    pub fn aim_any(&self) -> Result<bool> {
        let named = self.buffers.iter().filter(|line| line.target.load(Ordering::Relaxed) != ANY_SLOT);
        let moved = named.map(|line| line.target.store(ANY_SLOT, Ordering::Relaxed)).count() > 0;
        if moved {
            // SYNC event.dekker: pairs with the fence in `commit`. The targets are out before we look.
            fence(Ordering::SeqCst);
        }
        self.assist(self.open())?;
        let mut after = None;
        while let Some((index, word)) = self.oldest_filling(after)? {
            if self.count(index, word.batch)?.0 > 0 {
                return Ok(false);
            }
            after = Some(word.batch);
        }
        Ok(true)
    }

    /// Gives a batch's buffer back to the producers.
    pub fn release(&self, taken: Taken) {
        let line = &self.buffers[taken.buffer];
        let mine = BufferWord::taken(taken.batch, taken.owner).pack();
        let free = BufferWord::free(taken.batch).pack();
        // SYNC ring.free: Release here, Acquire in `open_next`. We are done reading (I6).
        let _ = line.word.compare_exchange(mine, free, Ordering::AcqRel, Ordering::Relaxed);
        crash_point(Point::BatchFreed);
        self.control.writable.notify_if_waiting();
    }

    /// Puts a batch back, unread, for the next consumer.
    pub fn give_back(&self, taken: Taken) {
        let line = &self.buffers[taken.buffer];
        let mine = BufferWord::taken(taken.batch, taken.owner).pack();
        let filling = BufferWord::filling(taken.batch).pack();
        // SYNC ring.filling: Release here, Acquire in `look_for_filling`.
        let _ = line.word.compare_exchange(mine, filling, Ordering::AcqRel, Ordering::Relaxed);
        self.control.readable.notify_if_waiting();
    }

    /// Closes early every unfinished batch that has a sample or a claim: it is complete once its writers are done.
    pub fn flush(&self) -> Result<()> {
        self.seal(|unfinished| unfinished.committed + unfinished.claimed > 0)?;
        self.control.readable.notify_if_waiting();
        Ok(())
    }

    /// Closes early the oldest unfinished batch with `at_least` committed samples, if possible one without a writer. False when
    /// there is none.
    pub fn seal_at_least(&self, at_least: usize) -> Result<bool> {
        let enough = at_least.max(1);
        let mut chosen = false;
        for idle_only in [true, false] {
            self.seal(|Unfinished { committed, claimed, is_sealed, .. }| {
                let is_idle = claimed == 0;
                let take = !chosen && !is_sealed && committed >= enough && (is_idle || !idle_only);
                chosen |= take;
                take
            })?;
        }
        if chosen {
            self.control.readable.notify_if_waiting(); // Others may sleep for a slot that is skipped now.
        }
        Ok(chosen)
    }

    /// Closes early the oldest unfinished batch that has a committed sample and is not closed. False when there is none, or when it
    /// would overtake an older one that `must_wait` says to wait for.
    pub fn seal_oldest(&self, must_wait: impl Fn(BatchNo) -> bool) -> Result<bool> {
        let (mut oldest, mut decided, mut chosen) = (None, false, false);
        self.seal(|unfinished| {
            let oldest = *oldest.get_or_insert(unfinished.batch);
            if decided || unfinished.is_sealed || unfinished.committed == 0 {
                return false;
            }
            (decided, chosen) = (true, oldest == unfinished.batch || !must_wait(oldest));
            chosen
        })?;
        Ok(chosen)
    }

    /// Closes the batches that `choose` picks, of those that are not complete, oldest first.
    fn seal(&self, mut choose: impl FnMut(Unfinished) -> bool) -> Result<()> {
        self.assist(self.open())?;
        let mut after = None;
        while let Some((index, word)) = self.oldest_filling(after)? {
            let sealed = &self.buffers[index].sealed;
            // SYNC ring.sealed: Acquire here, Release in `seal`, below.
            let before = sealed.load(Ordering::Acquire);
            let (committed, claimed) = self.count(index, word.batch)?;
            let (batch, is_sealed) = (word.batch, !BatchNo::new(before).is_before(word.batch));
            let chosen = committed < self.batch_size
                && choose(Unfinished { batch, committed, claimed, is_sealed })
                && !is_sealed;
            if chosen {
                // SYNC ring.sealed: Release here, Acquire in `progress`. A late one fails: the number has moved on.
                let batch = batch.value();
                let _ = sealed.compare_exchange(before, batch, Ordering::AcqRel, Ordering::Relaxed);
            }
            after = Some(word.batch);
        }
        Ok(())
    }

    /// How many slots of a batch are Ready, and how many are Claimed.
    pub fn count(&self, buffer: usize, batch: BatchNo) -> Result<(usize, usize)> {
        // SYNC ring.ready: Acquire here, Release in `commit`.
        let words =
            self.slots_of(buffer)?.iter().map(|slot| SlotWord::unpack(slot.word.load(Ordering::Acquire)));
        Ok(words.filter(|word| word.batch == batch).fold((0, 0), |(ready, claimed), word| match word.kind {
            SlotKind::Ready => (ready + 1, claimed),
            SlotKind::Claimed => (ready, claimed + 1),
            _ => (ready, claimed),
        }))
    }

    /// How many buffers `owner` holds.
    pub fn held_by(&self, owner: Owner) -> usize {
        let words = self.buffers.iter().map(|line| BufferWord::unpack(line.word.load(Ordering::Relaxed)));
        words.filter(|word| word.kind == BufferKind::Taken && word.owner == owner).count()
    }
}

/// Claims one slot for `batch`, if it may be claimed and no other producer is faster.
#[inline(always)]
fn claim_slot(slot: &Slot, batch: BatchNo, me: Claimant<'_>) -> bool {
    let word = slot.word.load(Ordering::Relaxed);
    if !SlotWord::unpack(word).is_claimable_for(batch) {
        return false;
    }
    let claimed = SlotWord::new(batch, SlotKind::Claimed, me.owner).pack();
    // SYNC ring.claim: Acquire here, Release in `abort` and `recover`. AcqRel: the claim is the one step that names the
    // owner (I1, I3).
    let won = slot.word.compare_exchange(word, claimed, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if !won {
        me.retries.fetch_add(1, Ordering::Relaxed);
    }
    won
}
