//! The ring's state machine: atomics only, no system call but the bell's, no payload. Loom runs this very code.
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
//!     second step that anybody may do; it is done before `open` moves on.
//! I5  A batch is complete when each of its slots is Ready or Skipped. The words are the only record of that: there is
//!     no counter that a death could leave wrong. Once complete, only the buffer word decides its fate, by one CAS:
//!     taken by one consumer, or dropped by one producer.
//! I6  A buffer is Free only after its release (release), and a producer sees it Free before it writes (acquire):
//!     nobody writes under a reader.
//! I7  Consumers take the oldest *complete* batch. One that waits for a writer is overtaken, though not at once: the
//!     consumer decides how long it waits for the sake of order, and a writer that is stuck holds up its batch only.
//! I8  Wake-ups. The commit of a batch's last slot, and of the slot that a waiting consumer named as its target, ring
//!     the bell. A consumer sleeps only after it saw its targets unsettled with the announcement and the target out.
//! I9  `cursor`, `holes` and `target` are hints. Wrong ones cost time: a scan, or a patrol.

use super::layout::{BatchNo, Buffer, BufferKind, BufferWord, Control, Place, Slot, SlotKind, SlotWord};
use crate::segment::Owner;
use crate::sync::{AtomicU64, Ordering, Point, crash_point, fence};

/// A word in the segment that no honest participant can have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage(pub &'static str);

type Result<T> = std::result::Result<T, Damage>;

/// A run of adjacent slots that one producer owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    pub batch: BatchNo,
    pub buffer: usize,
    pub slot: usize,
    pub len: usize,
    pub owner: Owner,
}

/// A batch that one consumer owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
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

/// The words of one ring, wherever they lie: in a segment, or on loom's heap.
#[derive(Debug, Clone, Copy)]
pub struct Protocol<'a> {
    pub control: &'a Control,
    pub buffers: &'a [Buffer],
    pub slots: &'a [Slot],
    pub batch_size: usize,
}

impl<'a> Protocol<'a> {
    /// Makes zeroed words into an empty ring. Nobody else may see them yet.
    pub fn initialise(&self) {
        let first = Place { batch: BatchNo::FIRST, index: 0 };
        self.control.write.open.store(first.pack(), Ordering::Relaxed);
        self.control.write.cursor.store(first.pack(), Ordering::Relaxed);
        self.buffers[0].word.store(BufferWord::filling(BatchNo::FIRST).pack(), Ordering::Release);
    }

    fn buffer(&self, index: usize) -> Result<&'a Buffer> {
        self.buffers.get(index).ok_or(Damage("a buffer index is out of range"))
    }

    /// The slots of one buffer.
    pub fn slots_of(&self, buffer: usize) -> Result<&'a [Slot]> {
        let first = buffer * self.batch_size;
        self.slots.get(first..first + self.batch_size).ok_or(Damage("a buffer index is out of range"))
    }

    // ── producers ──────────────────────────────────────────────────────────────────────────────────────────────

    /// Claims up to `want` adjacent slots; `None` when the ring is full.
    #[inline]
    pub fn try_claim(&self, owner: Owner, want: usize, retries: &AtomicU64) -> Result<Option<Claim>> {
        if self.control.write.holes.load(Ordering::Relaxed) != 0
            && let Some(claim) = self.claim_hole(owner, retries)?
        {
            return Ok(Some(claim));
        }
        loop {
            // SYNC ring.open: Acquire here, AcqRel in `open_next`. The buffer was released before it was opened (I6).
            let open = Place::unpack(self.control.write.open.load(Ordering::Acquire));
            if let Some(claim) = self.claim_in(open, owner, want, retries)? {
                return Ok(Some(claim));
            }
            if !self.open_next(open)? {
                return Ok(None);
            }
        }
    }

    #[inline]
    fn claim_in(&self, open: Place, owner: Owner, want: usize, retries: &AtomicU64) -> Result<Option<Claim>> {
        let slots = self.slots_of(open.index)?;
        if want > 1 {
            return Ok(self.claim_run(slots, open, owner, want, retries));
        }
        let hint = Place::unpack(self.control.write.cursor.load(Ordering::Relaxed));
        let from = if hint.batch == open.batch { hint.index } else { 0 };
        for (slot, line) in slots.iter().enumerate().skip(from) {
            if claim_slot(line, open.batch, owner, retries) {
                crash_point(Point::SlotClaimed);
                let next = Place { batch: open.batch, index: slot + 1 };
                self.control.write.cursor.store(next.pack(), Ordering::Relaxed);
                return Ok(Some(Claim { batch: open.batch, buffer: open.index, slot, len: 1, owner }));
            }
        }
        Ok(None)
    }

    /// Claims a run: moves the cursor past it first, so that others do not claim every second slot of it. The words
    /// decide all the same; what is promised and not claimed, by a death or because somebody was faster, is a hole.
    fn claim_run(
        &self,
        slots: &[Slot],
        open: Place,
        owner: Owner,
        want: usize,
        retries: &AtomicU64,
    ) -> Option<Claim> {
        let cursor = &self.control.write.cursor;
        loop {
            let word = cursor.load(Ordering::Relaxed);
            let hint = Place::unpack(word);
            if open.batch.is_before(hint.batch) {
                return None; // The ring has moved on.
            }
            let from = if hint.batch == open.batch { hint.index } else { 0 };
            let end = self.batch_size.min(from.saturating_add(want));
            if from >= end {
                return None;
            }
            let next = Place { batch: open.batch, index: end };
            if cursor.compare_exchange(word, next.pack(), Ordering::Relaxed, Ordering::Relaxed).is_err() {
                retries.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            crash_point(Point::RunPromised);
            let Some(slot) = (from..end).find(|&slot| claim_slot(&slots[slot], open.batch, owner, retries))
            else {
                continue;
            };
            crash_point(Point::SlotClaimed);
            let mut len = 1;
            while slot + len < end && claim_slot(&slots[slot + len], open.batch, owner, retries) {
                len += 1;
                crash_point(Point::RunPartlyClaimed);
            }
            let left = end - (slot + len);
            if left > 0 {
                self.control.write.holes.fetch_add(left as u64, Ordering::Relaxed);
                self.control.writable.ring_if_waiting();
            }
            return Some(Claim { batch: open.batch, buffer: open.index, slot, len, owner });
        }
    }

    /// Claims a slot that the cursor has passed: somebody gave it back, or did not take what he was promised.
    #[cold]
    fn claim_hole(&self, owner: Owner, retries: &AtomicU64) -> Result<Option<Claim>> {
        let holes = self.control.write.holes.load(Ordering::Relaxed);
        let mut after = None;
        while let Some((buffer, word)) = self.oldest_filling(after)? {
            for (slot, line) in self.slots_of(buffer)?.iter().enumerate() {
                if claim_slot(line, word.batch, owner, retries) {
                    crash_point(Point::SlotClaimed);
                    self.count_hole_filled();
                    return Ok(Some(Claim { batch: word.batch, buffer, slot, len: 1, owner }));
                }
            }
            after = Some(word.batch);
        }
        // Nothing there: somebody died between counting and freeing, or was faster. If he is just about to free it,
        // the next patrol counts again (I9).
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
            // SYNC ring.free: Acquire here, Release in `release` and `drop_oldest`. Nobody reads it any more (I6).
            let word = BufferWord::unpack(self.buffers[index].word.load(Ordering::Acquire));
            if word.kind == BufferKind::Free {
                if open.batch.is_before(word.batch) {
                    // Unless somebody has moved on, and this is a batch that we have not heard of.
                    let moved = self.control.write.open.load(Ordering::Acquire) != open.pack();
                    return if moved {
                        Ok(true)
                    } else {
                        Err(Damage("a free buffer is numbered after the open batch"))
                    };
                }
                let next = Place { batch: open.batch.next(), index };
                // SYNC ring.open: AcqRel here, Acquire in `try_claim`. Whoever fails sees another's choice (I4).
                let open_word = &self.control.write.open;
                if open_word
                    .compare_exchange(open.pack(), next.pack(), Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
                {
                    crash_point(Point::RingOpened);
                    self.assist(next)?;
                }
                return Ok(true);
            }
        }
        Ok(self.control.write.open.load(Ordering::Acquire) != open.pack())
    }

    /// Marks the open buffer as Filling if its opener has not done so yet (I4).
    fn assist(&self, open: Place) -> Result<()> {
        let line = self.buffer(open.index)?;
        let word = line.word.load(Ordering::Acquire);
        let was = BufferWord::unpack(word);
        if was.kind == BufferKind::Free && was.batch.is_before(open.batch) {
            let filling = BufferWord::filling(open.batch).pack();
            // Fails when somebody assisted first; an old view fails because the word has moved on to a later batch.
            let _ = line.word.compare_exchange(word, filling, Ordering::AcqRel, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Publishes a run. The payload and the stamps are written.
    #[inline]
    pub fn commit(&self, claim: &Claim) {
        let ready = SlotWord::new(claim.batch, SlotKind::Ready, claim.owner).pack();
        let first = claim.buffer * self.batch_size + claim.slot;
        for slot in &self.slots[first..first + claim.len] {
            // SYNC ring.ready: Release here, Acquire in `progress`. Publishes the payload and the stamp (I2).
            slot.word.store(ready, Ordering::Release);
            crash_point(Point::SlotReady);
        }
        // SYNC bell.dekker: pairs with the fence in `Bell::announce` and the one in `aim` (I8).
        fence(Ordering::SeqCst);
        if self.control.readable.has_waiter() {
            self.wake_reader(claim);
        }
    }

    #[cold]
    fn wake_reader(&self, claim: &Claim) {
        let target = self.buffers[claim.buffer].target.load(Ordering::Relaxed) as usize;
        let run = claim.slot..claim.slot + claim.len;
        if run.end == self.batch_size || run.contains(&target) {
            self.control.readable.ring();
        }
    }

    /// Gives a run back, unwritten or half-written: the next producer may have it.
    pub fn abort(&self, claim: &Claim) {
        let first = claim.buffer * self.batch_size + claim.slot;
        let free = SlotWord::free(claim.batch).pack();
        for slot in &self.slots[first..first + claim.len] {
            // Counted first: a hole too many costs a scan, a hole too few would be forgotten.
            self.control.write.holes.fetch_add(1, Ordering::Relaxed);
            crash_point(Point::HoleCounted);
            // SYNC ring.claim: Release here, Acquire in `claim_slot`. We are done writing (I1).
            slot.word.store(free, Ordering::Release);
            // Somebody may have looked for the hole in between, found none, and wiped the count.
            if self.control.write.holes.load(Ordering::Relaxed) == 0 {
                self.control.write.holes.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.control.counters.aborted.fetch_add(claim.len as u64, Ordering::Relaxed);
        self.control.writable.ring_if_waiting();
        self.control.readable.ring_if_waiting(); // The batch may be sealed, and complete without this slot.
    }

    /// Drops the oldest complete batch that nobody has taken; gives back how many samples it held.
    pub fn drop_oldest(&self) -> Result<Option<usize>> {
        let dropped = self.find_complete(&|_| false, |line, word, ready| {
            let free = BufferWord::free(word.batch).pack();
            // SYNC ring.free: Release here, Acquire in `open_next` (I5, I6).
            let won =
                line.word.compare_exchange(word.pack(), free, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            won.then_some(ready)
        })?;
        if dropped.is_some() {
            self.control.writable.ring_if_waiting();
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
                // SYNC ring.take: the slots' words were loaded with Acquire; this CAS makes the batch ours alone (I5).
                let won = line
                    .word
                    .compare_exchange(word.pack(), mine, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok();
                let buffer = self.index_of(line);
                won.then_some(Taken { batch: word.batch, buffer, ready, overtook: false, owner })
            })?;
            let Some(mut taken) = taken else { return Ok(None) };
            crash_point(Point::BatchTaken);
            if taken.ready == 0 {
                self.release(&taken); // Sealed, and then every claim in it was given back.
                continue;
            }
            taken.overtook = self.has_older(taken.batch);
            return Ok(Some(taken));
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
        self.assist(Place::unpack(self.control.write.open.load(Ordering::Acquire)))?;
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
            let word = BufferWord::unpack(line.word.load(Ordering::Acquire));
            if word.kind != BufferKind::Filling {
                continue;
            }
            // `open` moves before a buffer is marked. Without this, nonsense numbers could make the order circular.
            let open = Place::unpack(self.control.write.open.load(Ordering::Acquire));
            if open.batch.is_before(word.batch) {
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
    /// nothing to take; false when there is. The bell is announced already (I8).
    pub fn aim(&self) -> Result<bool> {
        self.aim_unless(|_| false)
    }

    /// As [`aim`](Self::aim), for a consumer that takes with [`try_take_unless`](Self::try_take_unless).
    pub fn aim_unless(&self, must_wait: impl Fn(BatchNo) -> bool) -> Result<bool> {
        loop {
            let (mut moved, mut after, mut unfinished) = (false, None, None);
            self.assist(Place::unpack(self.control.write.open.load(Ordering::Acquire)))?;
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
            // SYNC bell.dekker: the targets are out before we look again; pairs with the fence in `commit`.
            fence(Ordering::SeqCst);
        }
    }

    /// Gives a batch's buffer back to the producers.
    pub fn release(&self, taken: &Taken) {
        let line = &self.buffers[taken.buffer];
        let mine = BufferWord::taken(taken.batch, taken.owner).pack();
        let free = BufferWord::free(taken.batch).pack();
        // SYNC ring.free: Release here, Acquire in `open_next`. We are done reading (I6).
        let _ = line.word.compare_exchange(mine, free, Ordering::AcqRel, Ordering::Relaxed);
        crash_point(Point::BatchFreed);
        self.control.writable.ring_if_waiting();
    }

    /// Puts a batch back, unread, for whoever asks next.
    pub fn give_back(&self, taken: &Taken) {
        let line = &self.buffers[taken.buffer];
        let mine = BufferWord::taken(taken.batch, taken.owner).pack();
        let filling = BufferWord::filling(taken.batch).pack();
        let _ = line.word.compare_exchange(mine, filling, Ordering::AcqRel, Ordering::Relaxed);
        self.control.readable.ring_if_waiting();
    }

    /// Closes early every unfinished batch that somebody has written to: it is complete once its writers are done.
    pub fn flush(&self) -> Result<()> {
        self.seal(|committed, claimed| committed + claimed > 0)?;
        self.control.readable.ring_if_waiting();
        Ok(())
    }

    /// Closes early the oldest unfinished batch with `at_least` committed samples, one that nobody is writing to if there
    /// is one. False when there is none.
    pub fn seal_at_least(&self, at_least: usize) -> Result<bool> {
        let enough = at_least.max(1);
        let mut chosen = false;
        for idle_only in [true, false] {
            self.seal(|committed, claimed| {
                let take = !chosen && committed >= enough && !(idle_only && claimed > 0);
                chosen |= take;
                take
            })?;
        }
        if chosen {
            self.control.readable.ring_if_waiting(); // Others may sleep for a slot that is skipped now.
        }
        Ok(chosen)
    }

    /// Closes the batches that `choose` picks, of those that are not complete and not closed yet, oldest first.
    fn seal(&self, mut choose: impl FnMut(usize, usize) -> bool) -> Result<()> {
        self.assist(Place::unpack(self.control.write.open.load(Ordering::Acquire)))?;
        let mut after = None;
        while let Some((index, word)) = self.oldest_filling(after)? {
            let sealed = &self.buffers[index].sealed;
            let before = sealed.load(Ordering::Acquire);
            let (committed, claimed) = self.count(index, word.batch)?;
            let open = committed < self.batch_size && BatchNo::new(before).is_before(word.batch);
            if open && choose(committed, claimed) {
                // SYNC ring.sealed: Release here, Acquire in `progress`. A late one fails: the number has moved on.
                let batch = word.batch.value();
                let _ = sealed.compare_exchange(before, batch, Ordering::AcqRel, Ordering::Relaxed);
            }
            after = Some(word.batch);
        }
        Ok(())
    }

    /// How many slots of a batch are Ready, and how many are Claimed.
    pub fn count(&self, buffer: usize, batch: BatchNo) -> Result<(usize, usize)> {
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

/// Claims one slot for `batch`, if it may be claimed and nobody is faster.
#[inline]
fn claim_slot(slot: &Slot, batch: BatchNo, owner: Owner, retries: &AtomicU64) -> bool {
    let word = slot.word.load(Ordering::Relaxed);
    if !SlotWord::unpack(word).is_claimable_for(batch) {
        return false;
    }
    let claimed = SlotWord::new(batch, SlotKind::Claimed, owner).pack();
    // SYNC ring.claim: Acquire here, Release in `abort` and `recover`. AcqRel: the claim is the one step that names the
    // owner (I1, I3).
    let won = slot.word.compare_exchange(word, claimed, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if !won {
        retries.fetch_add(1, Ordering::Relaxed);
    }
    won
}
