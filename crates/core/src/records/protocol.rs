//! The records' state machine: atomics only, no system call but those of event counts, no payload. Loom runs this very code.
//!
//! ```text
//! Free(older) ──reserve──▶ Reserved(n, producer) ──commit──▶ Ready(n) ──take──▶ Taken(n, consumer) ──release──▶ Free(n)
//!                              │                              ▲  │                │
//!                              └─ abort, or owner dead        │  └─ drop oldest   └─ given back, or owner dead
//!                                 ──▶ Free(n)                 │     ──▶ Free(n)      ──▶ Ready(n) again, counted
//!                                                             └───────────────────────┘
//! ```
//!
//! A record that a dead owner had logged becomes Ready, not Free ([`sessions`](super::sessions)).
//!
//! I1  A lane has one owner, named in its owner word by a CAS. Only the owner turns a Free descriptor into a Reserved one,
//!     allocates room in the lane's data, and moves `head` and `grown`.
//! I2  A record's bytes, place and stamp are written only by the owner named in its Reserved word. Ready is stored after
//!     all of them (release), by the owner, or by a process that finishes what a dead owner had logged; a consumer loads it
//!     before it reads any (acquire).
//! I3  Record *n* lives in descriptor *n* mod *D*. The owner offers the numbers one by one. It skips a number whose descriptor
//!     is Taken: a consumer holds an older record there. It skips one that was given back and that a forwarder may have sent.
//!     It stops at one that is Reserved or Ready otherwise. So no number that is not settled, and was never given back, is more
//!     than *D* below `head`, and what is held for long stops no producer.
//! I4  Reserved(*n*) is stored before `head` moves past *n* (release). So for any *n* below `head` (acquire), a descriptor
//!     with another number than *n* means that *n* was skipped, or is over.
//! I5  Ready has two ends, each by one CAS: Taken by one consumer, or dropped by the lane's owner. What a forwarder may have sent
//!     is not dropped.
//! I6  A descriptor is Free only after its reader is done (release), and the owner sees it Free before it uses the bytes
//!     again (acquire): no producer writes under a reader. What the owner has allocated is, at any time, at least what the
//!     words that are not Free describe.
//! I7  A number is settled when its record is Taken or Free, or was skipped. It stays settled, but for records that are
//!     given back: their words say so, wherever the cursor is, and they are counted in `returned` after that. A consumer
//!     that finds `returned` moved looks through the whole table for such words; one that found none notes in `looked` up
//!     to which count. Both only grow.
//! I8  `cursor` is a hint: all numbers below it are settled. It only grows; a lower one costs a longer look. It waits for a
//!     reservation; `settled` notes how many numbers behind that one are settled, so that they are not looked at again. `released`
//!     is a hint, too: the words are the truth about what can be reclaimed.
//! I9  Wake-ups are those of event counts (B1). To make records Ready notifies `readable`, once for a run of them with nothing
//!     but copying in between. To make one Free notifies `room`, but not each time: a producer that sleeps says after how
//!     many releases it wants to be woken, so that it does not wake, send one record and sleep again. It never says more
//!     than there is to be read in its lane. A consumer that finds nothing to take wakes producers that sleep though
//!     something was released.

use super::layout::{Control, Descriptor, FreeLine, Lane, LaneOwner, NUMBER_MASK, SettledRun, State, Word};
use crate::error::Damage;
use crate::segment::sessions::SessionEntry;
use crate::segment::{Owned, Owner};
use crate::sys::sync::{Ordering, Point, crash_point, fence};
use smallvec::SmallVec;

type Result<T> = std::result::Result<T, Damage>;

/// Shorter runs are looked at again. Loom's lanes are short.
const WORTH_NOTING: u64 = if cfg!(loom) { 1 } else { 16 };

/// A record that its producer is writing, until it is committed or aborted.
pub type Claim = Owned<ReservedRecord>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReservedRecord {
    pub lane: usize,
    pub number: u64,
    pub owner: Owner,
}

/// A record that one consumer owns, until it is released or given back.
pub type Taken = Owned<TakenRecord>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakenRecord {
    pub lane: usize,
    pub number: u64,
    pub owner: Owner,
    /// Where it lies in the lane's data. Checked.
    pub start: usize,
    pub bytes: usize,
}

/// Where a record lies, and what is written beside it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entry {
    pub start: u64,
    pub bytes: u64,
    pub stamp: Stamp,
    /// CLOCK_MONOTONIC at the commit.
    pub committed_ns: u64,
}

/// The producer of a record, and what the record is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Of the weights that it was made with.
    pub version: u32,
    /// What the caller calls it: data, tombstone, …
    pub kind: u32,
    pub producer_id: u32,
    /// Of its producer's records.
    pub sequence: u64,
}

/// What Ready records are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Take,
    Drop,
}

impl Purpose {
    /// A record that a forwarder may have sent is not dropped (I5).
    #[inline]
    fn wants(self, descriptor: &Descriptor) -> bool {
        self == Purpose::Take || descriptor.sent_as().is_none()
    }
}

/// What the table of a lane has for its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextNumber {
    Number(u64),
    /// Full: a record that no consumer has taken is in the way.
    Unread,
    /// Full, and there is nothing to drop: a reservation is in the way, or all of it is held.
    None,
    /// Full of records that no consumer looks for: the head of the lane is wrong (I3).
    Lost,
}

/// The words of all lanes, wherever they lie: in a segment, or on loom's heap.
#[derive(Debug, Clone, Copy)]
pub struct Protocol<'a> {
    pub control: &'a Control,
    pub lanes: &'a [Lane],
    /// Of remote clients; see [`sessions`](super::sessions).
    pub sessions: &'a [SessionEntry],
    /// Those of lane 0, then those of lane 1, …
    pub descriptors: &'a [Descriptor],
    pub lane_bytes: usize,
}

/// The words of one lane.
#[derive(Debug, Clone, Copy)]
pub struct LaneWords<'a> {
    pub index: usize,
    pub line: &'a Lane,
    /// As many as a power of two.
    pub table: &'a [Descriptor],
    pub lane_bytes: usize,
    pub(super) sessions: &'a [SessionEntry],
    control: &'a Control,
}

impl<'a> Protocol<'a> {
    /// One lane, if its table exists.
    #[inline]
    pub fn existing_lane(&self, index: usize) -> Option<LaneWords<'a>> {
        // SYNC records.tabled: Acquire here, Release in `open_lane`. The table may be touched.
        (self.lanes[index].write.tabled.load(Ordering::Acquire) != 0).then(|| self.lane(index))
    }

    /// The lanes in which there may be something.
    pub fn existing_lanes(&self) -> impl Iterator<Item = LaneWords<'a>> + use<'a> {
        let this = *self;
        (0..self.lanes_used()).filter_map(move |index| this.existing_lane(index))
    }

    /// One lane whose table exists, or is about to.
    #[inline]
    pub fn lane(&self, index: usize) -> LaneWords<'a> {
        let depth = self.descriptors.len() / self.lanes.len();
        LaneWords {
            index,
            line: &self.lanes[index],
            table: &self.descriptors[index * depth..(index + 1) * depth],
            lane_bytes: self.lane_bytes,
            sessions: self.sessions,
            control: self.control,
        }
    }

    /// How many lanes are worth a look.
    #[inline]
    pub fn lanes_used(&self) -> usize {
        // SYNC records.used: Acquire here, Release in `open_lane`. A lane is counted before anything is committed in it.
        (self.control.lanes_used.load(Ordering::Acquire) as usize).min(self.lanes.len())
    }

    /// Lets consumers look into a lane that we have taken. Its table exists.
    pub fn open_lane(&self, index: usize) {
        // SYNC records.tabled: Release here, Acquire in `existing_lane`.
        self.lanes[index].write.tabled.store(1, Ordering::Release);
        // SYNC records.used: Release here, Acquire in `lanes_used`.
        self.control.lanes_used.fetch_max(index as u64 + 1, Ordering::AcqRel);
    }

    /// Takes a lane that has no owner, or whose owner `is_dead`: the lowest of those that have the least to be read, so that
    /// a newcomer does not inherit a full one while another is empty. `None` when all of them have living owners.
    pub fn take_lane(&self, me: Owner, is_dead: impl Fn(Owner) -> bool) -> Option<usize> {
        loop {
            let vacant = self.lanes.iter().enumerate().filter_map(|(index, lane)| {
                let word = lane.write.owner.load(Ordering::Relaxed);
                LaneOwner::unpack(word).owner.is_none_or(&is_dead).then_some((index, word))
            });
            let (index, word) = vacant.min_by_key(|&(index, _)| self.lane(index).unread())?;
            let mine =
                LaneOwner { epoch: LaneOwner::unpack(word).epoch.wrapping_add(1), owner: Some(me) }.pack();
            let owner = &self.lanes[index].write.owner;
            // SYNC records.lane: Acquire here, Release in `vacate`. `head`, `grown` and the table are ours (I1).
            if owner.compare_exchange(word, mine, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                crash_point(Point::LaneTaken);
                return Some(index);
            }
        }
    }

    /// Takes the next record of the lanes from `first` on, each looked at once. `None` when there is none.
    pub fn try_take(&self, me: Owner, first: usize) -> Result<Option<Taken>> {
        let mut next = None;
        self.try_take_many(me, first, 1, |_, taken| next = Some(taken))?;
        Ok(next)
    }

    /// Hands up to `most` records to `keep`, each with its turn: of one turn there is at most one from each lane. They come
    /// lane by lane, from `first` on, each lane's share at once, and again as long as there are any. Damage is an error only when nothing was taken before it; otherwise the next call meets it.
    #[inline]
    pub fn try_take_many(
        &self,
        me: Owner,
        first: usize,
        most: usize,
        mut keep: impl FnMut(usize, Taken),
    ) -> Result<()> {
        let (used, mut left) = (self.lanes_used(), most);
        let share = most.div_ceil(used.max(1));
        for round in 0.. {
            let before = left;
            for step in 0..used {
                let Some(lane) = self.existing_lane((first + step) % used) else { continue };
                let mut turn = round * share;
                let taken = lane.try_take_many(me, share.min(left), |taken| {
                    keep(turn, taken);
                    turn += 1;
                });
                match taken {
                    Ok(taken) => left -= taken,
                    Err(damage) if left == most => return Err(damage),
                    Err(_) => return Ok(()),
                }
                if left == 0 {
                    return Ok(());
                }
            }
            if left == before {
                break;
            }
        }
        if left == most {
            self.wake_producers();
        }
        Ok(())
    }

    /// Wakes producers that sleep though something was released in their lanes (I9).
    #[cold]
    fn wake_producers(&self) {
        // SYNC event.dekker: pairs with the fence in `EventCount::announce`.
        fence(Ordering::SeqCst);
        for lane in self.existing_lanes() {
            let FreeLine { released, slept_at, .. } = &lane.line.free;
            if lane.line.room.has_waiter()
                && released.load(Ordering::Relaxed) != slept_at.load(Ordering::Relaxed)
            {
                lane.line.room.notify();
            }
        }
    }

    /// Whether a look may be worth its while. It moves nothing and promises nothing.
    #[inline]
    pub fn may_be_readable(&self) -> bool {
        self.lanes[..self.lanes_used()]
            .iter()
            .any(|lane| lane.write.head.load(Ordering::Relaxed) != lane.read.cursor.load(Ordering::Relaxed))
    }

    /// Whether a consumer would find a record now.
    pub fn has_ready(&self) -> Result<bool> {
        for lane in self.existing_lanes() {
            if lane.has_ready()? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Descriptor {
    /// The number that a forwarder gave the record. The caller has seen a word of the record that is not Reserved.
    #[inline]
    pub fn sent_as(&self) -> Option<u64> {
        self.sent.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Frees a reservation of the dead. Several processes may try; true for the one that did, which counts it.
    pub(super) fn free_reserved(&self, reserved: u64) -> bool {
        let free = Word::free(Word::unpack(reserved).number).pack();
        // SYNC records.free: Release here, Acquire in `next_number` and `Ledger::sweep`.
        self.word.compare_exchange(reserved, free, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl Lane {
    /// Takes the lane from its owner, if `is_over` says so. Its reservations are Free, or still to be committed.
    pub(super) fn vacate(&self, is_over: impl FnOnce(Owner) -> bool) {
        let word = self.write.owner.load(Ordering::Relaxed);
        let LaneOwner { epoch, owner } = LaneOwner::unpack(word);
        if owner.is_some_and(is_over) {
            let vacant = LaneOwner { epoch, owner: None }.pack();
            // SYNC records.lane: Release here, Acquire in `take_lane`.
            let _ = self.write.owner.compare_exchange(word, vacant, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

impl<'a> LaneWords<'a> {
    #[inline]
    fn at(&self, number: u64) -> &'a Descriptor {
        #[cfg(all(test, not(loom)))]
        tests::count_look();
        &self.table[self.index_of(number)]
    }

    /// The descriptor of a record.
    #[inline]
    pub fn index_of(&self, number: u64) -> usize {
        number as usize & (self.table.len() - 1)
    }

    /// About how many of its records no consumer has taken: as far as the cursor knows.
    fn unread(&self) -> u64 {
        let cursor = self.line.read.cursor.load(Ordering::Relaxed);
        self.line.write.head.load(Ordering::Relaxed).saturating_sub(cursor)
    }

    /// How far below `head` a number may be that is not settled (I3).
    fn depth(&self) -> u64 {
        self.table.len() as u64
    }

    // ── the owner of the lane ──────────────────────────────────────────────────────────────────────────────────

    /// Frees what the last owner had reserved and not logged, after the lane was taken.
    pub fn clear_reserved(&self, me: Owner) {
        let (mut cleared, mut finished) = (0, None);
        for descriptor in self.table {
            let word = descriptor.word.load(Ordering::Relaxed);
            let was = Word::unpack(word);
            if was.state == State::Reserved && was.owner != me {
                if finished.replace(was.owner) != Some(was.owner) {
                    self.finish_logs_of(was.owner);
                }
                cleared += descriptor.free_reserved(word) as u64;
            }
        }
        self.control.counters.recovered.fetch_add(cleared, Ordering::Relaxed);
    }

    /// The number for the next record, if the table has one.
    #[inline]
    pub fn next_number(&self) -> NextNumber {
        let head = self.line.write.head.load(Ordering::Relaxed);
        for number in head..head.wrapping_add(self.depth()) {
            // SYNC records.free: Acquire here, Release in `release`. Its reader is done (I6).
            let was = Word::unpack(self.at(number).word.load(Ordering::Acquire));
            match was.state {
                State::Free => return NextNumber::Number(number),
                State::Taken => {}
                State::Ready if was.was_given_back() && self.at(number).sent_as().is_some() => {} // I5
                State::Ready if was.is_lost_before(number.wrapping_sub(self.depth())) => {
                    return NextNumber::Lost;
                }
                State::Ready => return NextNumber::Unread,
                State::Reserved => return NextNumber::None,
            }
        }
        NextNumber::None
    }

    /// Reserves the descriptor of a number from [`next_number`](Self::next_number).
    #[inline]
    pub fn reserve(&self, number: u64, me: Owner) -> Claim {
        let reserved = Word::new(number, State::Reserved, me).pack();
        self.at(number).word.store(reserved, Ordering::Relaxed);
        crash_point(Point::RecordReserved);
        // SYNC records.head: Release here, Acquire in `span`. The word above comes first (I4).
        self.line.write.head.store(number.wrapping_add(1), Ordering::Release);
        crash_point(Point::RecordNumbered);
        Owned::new(ReservedRecord { lane: self.index, number, owner: me })
    }

    /// Publishes a record, and wakes consumers. Its bytes are written.
    #[inline]
    pub fn commit(&self, claim: Claim, entry: &Entry) {
        self.publish(claim, entry);
        self.tell(1);
    }

    /// Publishes a record of a run. Its bytes are written. [`tell`](Self::tell) has to follow: wait for nothing in between (I9).
    #[inline]
    pub fn publish(&self, claim: Claim, entry: &Entry) {
        self.describe(&claim, entry);
        self.make_ready(claim);
    }

    /// Writes where a record lies and what it is.
    #[inline]
    pub fn describe(&self, claim: &Claim, entry: &Entry) {
        let descriptor = self.at(claim.number);
        debug_assert_eq!(
            descriptor.word.load(Ordering::Relaxed),
            Word::new(claim.number, State::Reserved, claim.owner).pack()
        );
        descriptor.start.store(entry.start, Ordering::Relaxed);
        descriptor.bytes.store(entry.bytes, Ordering::Relaxed);
        descriptor.sequence.store(entry.stamp.sequence, Ordering::Relaxed);
        descriptor.committed_ns.store(entry.committed_ns, Ordering::Relaxed);
        descriptor.producer_id.store(entry.stamp.producer_id, Ordering::Relaxed);
        descriptor.version.store(entry.stamp.version, Ordering::Relaxed);
        descriptor.kind.store(entry.stamp.kind, Ordering::Relaxed);
        descriptor.sent.store(0, Ordering::Relaxed);
        crash_point(Point::RecordWritten);
    }

    /// Publishes a record that is described. Its bytes are written.
    #[inline]
    pub(super) fn make_ready(&self, claim: Claim) {
        // SYNC records.ready: Release here, Acquire in `find_ready`, `ready_word`, `has_ready`, `oldest_returned` and
        // `Ledger::rebuild`. Publishes the bytes, the place and the stamp (I2).
        self.at(claim.number).word.store(Word::ready(claim.number).pack(), Ordering::Release);
        crash_point(Point::RecordReady);
    }

    /// Counts what was published, and wakes consumers.
    #[inline]
    pub fn tell(&self, published: u64) {
        self.line.write.sent.fetch_add(published, Ordering::Relaxed);
        self.control.readable.notify_if_waiting(); // I9
    }

    /// Gives a reservation back, unwritten or half-written.
    pub fn abort(&self, claim: Claim) {
        // SYNC records.free: Release here, Acquire in `next_number` and `Ledger::sweep`. We are done writing.
        self.at(claim.number).word.store(Word::free(claim.number).pack(), Ordering::Release);
        self.line.free.aborted.fetch_add(1, Ordering::Relaxed);
        self.line.room.notify_if_waiting(); // Another thread may wait with the same handle (I9).
    }

    /// Drops the lane's oldest record that no consumer has taken; gives back its number.
    pub fn drop_oldest(&self) -> Result<Option<u64>> {
        let dropped = self.find_ready(Purpose::Drop, |descriptor, word, number| {
            let free = Word::free(number).pack();
            // SYNC records.free: Release here, Acquire in `next_number` and `Ledger::sweep`. No consumer has read it (I5).
            let won =
                descriptor.word.compare_exchange(word, free, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            won.then_some(number)
        })?;
        if dropped.is_some() {
            crash_point(Point::RecordDropped);
            self.line.write.dropped_oldest.fetch_add(1, Ordering::Relaxed);
        }
        Ok(dropped)
    }

    /// Gives the lane back. What was committed in it stays to be read.
    pub fn leave_lane(&self, me: Owner) {
        self.line.vacate(|owner| owner == me);
    }

    // ── consumers ──────────────────────────────────────────────────────────────────────────────────────────────

    /// Hands the lane's oldest records that are Ready to `keep`, at most `most`, and says how many. Damage is an error only
    /// when nothing was taken before it.
    #[inline]
    pub fn try_take_many(&self, me: Owner, most: usize, mut keep: impl FnMut(Taken)) -> Result<usize> {
        let (mut count, mut damaged) = (0, None);
        self.find_ready(Purpose::Take, |descriptor, word, number| {
            match self.take(descriptor, word, number, me)? {
                Ok(taken) => {
                    keep(taken);
                    count += 1;
                    (count == most).then_some(())
                }
                Err(damage) => {
                    damaged = Some(damage);
                    Some(())
                }
            }
        })?;
        if count > 0 {
            self.line.read.taken.fetch_add(count as u64, Ordering::Relaxed);
        }
        match damaged {
            Some(damage) if count == 0 => Err(damage),
            _ => Ok(count),
        }
    }

    /// Takes a Ready record. `None`: another process was faster.
    #[inline]
    fn take(&self, descriptor: &Descriptor, word: u64, number: u64, me: Owner) -> Option<Result<Taken>> {
        let mine = Word::new(number, State::Taken, me).pack();
        // SYNC records.ready: AcqRel here, as in `make_ready_again`: what `publish` stored reaches the next consumer, too. The
        // word was loaded with Acquire; this CAS makes the record ours alone (I5).
        descriptor.word.compare_exchange(word, mine, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        crash_point(Point::RecordTaken);
        let place = self.place(descriptor);
        if place.is_err() {
            self.make_ready_again(descriptor, mine); // It stays, and every consumer that meets it gets the error.
        }
        Some(place.map(|(start, bytes)| {
            Owned::new(TakenRecord { lane: self.index, number, owner: me, start, bytes })
        }))
    }

    /// Hands the records that were given back and that a forwarder may have sent to `keep`, with their numbers there. The only
    /// consumer calls it (F1).
    pub fn take_sent(&self, me: Owner, mut keep: impl FnMut(u64, Taken)) -> Result<()> {
        let (_, head) = self.span()?;
        for descriptor in self.table {
            // SYNC records.ready: Acquire here, AcqRel in `make_ready_again`, behind the Release in `make_ready` (I2).
            let word = descriptor.word.load(Ordering::Acquire);
            let was = Word::unpack(word);
            if let Some(sent_as) = descriptor.sent_as()
                && was.was_given_back()
                && let Some(taken) = self.take(descriptor, word, head.wrapping_sub(was.age(head)), me)
            {
                keep(sent_as, taken?);
                self.line.read.taken.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Notes the number under which a forwarder sends a record that it has taken.
    pub fn note_sent(&self, taken: &Taken, sent_as: u64) {
        self.at(taken.number).sent.store(sent_as + 1, Ordering::Relaxed);
    }

    /// Whether there is no record below `end` for a consumer to take. `writing`: and none that is being written.
    pub fn is_taken_until(&self, end: u64, writing: bool) -> Result<bool> {
        let (first, head) = self.span()?;
        if self.has_returned(head) {
            return Ok(false);
        }
        Ok((first..end.min(head)).all(|number| {
            // SYNC records.ready: Acquire here, Release in `make_ready` (I2).
            let was = Word::unpack(self.at(number).word.load(Ordering::Acquire));
            !was.is_of(number) || !(was.state == State::Ready || writing && was.state == State::Reserved)
        }))
    }

    /// Where a record lies, checked against what exists of the lane.
    pub fn place(&self, descriptor: &Descriptor) -> Result<(usize, usize)> {
        let start = descriptor.start.load(Ordering::Relaxed);
        let bytes = descriptor.bytes.load(Ordering::Relaxed);
        let grown = self.grown()? as u64;
        match start.checked_add(bytes) {
            Some(end) if end <= grown => Ok((start as usize, bytes as usize)),
            _ => Err(Damage("a record lies outside its lane")),
        }
    }

    /// How much of the lane exists.
    pub fn grown(&self) -> Result<usize> {
        let grown = self.line.write.grown.load(Ordering::Relaxed);
        if grown > self.lane_bytes as u64 {
            return Err(Damage("a lane is grown beyond its size"));
        }
        Ok(grown as usize)
    }

    /// The numbers that may not be settled, and `head`.
    #[inline]
    fn span(&self) -> Result<(u64, u64)> {
        // SYNC records.cursor: Acquire here, Release in `find_ready`, after a `head` that is not lower was seen.
        let cursor = self.line.read.cursor.load(Ordering::Acquire);
        // SYNC records.head: Acquire here, Release in `reserve` (I4).
        let head = self.line.write.head.load(Ordering::Acquire);
        if cursor > head {
            return Err(Damage("the cursor of a lane is ahead of its head"));
        }
        // All that is further back is settled (I3).
        Ok((cursor.max(head.saturating_sub(self.depth())), head))
    }

    /// Whether a consumer would find a record now. It moves nothing.
    pub fn has_ready(&self) -> Result<bool> {
        let (first, head) = self.span()?;
        if self.has_returned(head) {
            return Ok(true);
        }
        let mut number = first;
        while number < head {
            // SYNC records.ready: Acquire here, Release in `make_ready` (I2).
            let was = Word::unpack(self.at(number).word.load(Ordering::Acquire));
            match was.state {
                State::Ready if was.is_of(number) => return Ok(true),
                State::Reserved if was.is_of(number) => number = self.after_reserved(number),
                _ => number += 1,
            }
        }
        Ok(false)
    }

    /// Whether a record is Ready again.
    fn has_returned(&self, head: u64) -> bool {
        let read = &self.line.read;
        // SYNC records.returned: Acquire here, Release in `count_returned`.
        read.returned.load(Ordering::Acquire) != read.looked.load(Ordering::Relaxed)
            && self.oldest_returned(head, Purpose::Take).is_some()
    }

    /// The first number behind a reservation that may not be settled (I8).
    #[cold]
    fn after_reserved(&self, reserved: u64) -> u64 {
        let run = SettledRun::unpack(self.line.read.settled.load(Ordering::Relaxed));
        let len = if run.reserved == reserved & NUMBER_MASK { run.len } else { 0 };
        reserved.saturating_add(1 + len)
    }

    /// Notes that the numbers between a reservation and `end` are settled (I8). They stay so.
    #[cold]
    fn note_settled(&self, reserved: u64, end: u64) {
        if end - reserved > WORTH_NOTING {
            let (settled, run) = (&self.line.read.settled, SettledRun { reserved, len: end - reserved - 1 });
            if settled.load(Ordering::Relaxed) != run.pack() {
                settled.store(run.pack(), Ordering::Relaxed);
            }
        }
    }

    /// The word of a record, if it is Ready.
    #[inline]
    fn ready_word(&self, number: u64) -> Option<u64> {
        // SYNC records.ready: Acquire here, Release in `make_ready` (I2).
        let word = self.at(number).word.load(Ordering::Acquire);
        let was = Word::unpack(word);
        (was.state == State::Ready && was.is_of(number)).then_some(word)
    }

    /// Calls `claim` on Ready records, oldest first, until it gives something; helps the cursor forward. To drop one, skips those that a
    /// forwarder may have sent.
    #[inline]
    fn find_ready<T>(
        &self,
        purpose: Purpose,
        mut claim: impl FnMut(&'a Descriptor, u64, u64) -> Option<T>,
    ) -> Result<Option<T>> {
        let (first, head) = self.span()?;
        if let Some(found) = self.find_returned(head, purpose, &mut claim) {
            return Ok(Some(found));
        }
        let (mut found, mut settled, mut number) = (None, first, first);
        let mut reserved = SmallVec::<[u64; 8]>::new(); // Those that we passed.
        while number < head {
            let descriptor = self.at(number);
            // SYNC records.ready: Acquire here, Release in `make_ready` (I2).
            let word = descriptor.word.load(Ordering::Acquire);
            let was = Word::unpack(word);
            match was.state {
                State::Reserved if was.is_of(number) => {
                    reserved.push(number); // The cursor stays behind it.
                    number = self.after_reserved(number);
                    continue;
                }
                State::Ready if was.is_of(number) && purpose.wants(descriptor) => {
                    // What we passed may have been committed since, and before this one: then it comes first.
                    let passed = reserved.iter().find_map(|&earlier| {
                        self.ready_word(earlier).and_then(|word| claim(self.at(earlier), word, earlier))
                    });
                    found = passed.or_else(|| claim(descriptor, word, number));
                }
                State::Ready if was.is_lost_before(number) => {
                    return Err(Damage("a record that was not taken is further back than its lane is deep"));
                }
                _ => {}
            }
            if settled == number {
                settled += 1;
            }
            if found.is_some() {
                break;
            }
            number += 1;
        }
        if let Some(&last) = reserved.last() {
            self.note_settled(last, number.min(head));
        }
        if settled > first {
            // SYNC records.cursor: Release here, Acquire in `span` (I8).
            self.line.read.cursor.fetch_max(settled, Ordering::Release);
        }
        Ok(found)
    }

    /// Looks for records that were given back, oldest first (I7).
    #[inline]
    fn find_returned<T>(
        &self,
        head: u64,
        purpose: Purpose,
        claim: &mut impl FnMut(&'a Descriptor, u64, u64) -> Option<T>,
    ) -> Option<T> {
        let read = &self.line.read;
        // SYNC records.returned: Acquire here, Release in `count_returned`. The record is Ready before it is counted.
        let returned = read.returned.load(Ordering::Acquire);
        if returned == read.looked.load(Ordering::Relaxed) {
            return None;
        }
        self.look_for_returned(head, returned, purpose, claim)
    }

    #[cold]
    fn look_for_returned<T>(
        &self,
        head: u64,
        returned: u64,
        purpose: Purpose,
        claim: &mut impl FnMut(&'a Descriptor, u64, u64) -> Option<T>,
    ) -> Option<T> {
        while let Some((descriptor, word, age)) = self.oldest_returned(head, purpose) {
            let found = claim(descriptor, word, head.wrapping_sub(age));
            if found.is_some() {
                return found;
            }
        }
        if purpose == Purpose::Take {
            self.line.read.looked.fetch_max(returned, Ordering::Relaxed);
        }
        None
    }

    /// The oldest record that is Ready again, with its word and how far it is below `head`.
    fn oldest_returned(&self, head: u64, purpose: Purpose) -> Option<(&'a Descriptor, u64, u64)> {
        // SYNC records.ready: Acquire here, AcqRel in `make_ready_again`, behind the Release in `make_ready` (I2).
        let words = self.table.iter().map(|descriptor| (descriptor, descriptor.word.load(Ordering::Acquire)));
        let returned = words.filter_map(|(descriptor, word)| {
            let was = Word::unpack(word);
            (was.was_given_back() && purpose.wants(descriptor)).then(|| (descriptor, word, was.age(head)))
        });
        returned.max_by_key(|&(_, _, age)| age)
    }

    /// Gives a record's room back to the producer.
    #[inline]
    pub fn release(&self, taken: Taken) {
        let mine = Word::new(taken.number, State::Taken, taken.owner).pack();
        let free = Word::free(taken.number).pack();
        // SYNC records.free: Release here, Acquire in `next_number` and `Ledger::sweep`. We are done reading (I6).
        let _ = self.at(taken.number).word.compare_exchange(mine, free, Ordering::AcqRel, Ordering::Relaxed);
        crash_point(Point::RecordFreed);
        let FreeLine { released, slept_at, wake_after, .. } = &self.line.free;
        let released = released.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        // SYNC event.dekker: pairs with the fence in `EventCount::announce`. What the sleeper says is stored before that.
        fence(Ordering::SeqCst);
        if self.line.room.has_waiter()
            && released.wrapping_sub(slept_at.load(Ordering::Relaxed)) >= wake_after.load(Ordering::Relaxed)
        {
            self.line.room.notify(); // I9
        }
    }

    /// Says that the lane's producer is about to sleep until there is room. Look once more after this.
    pub fn announce_sleep(&self) -> u32 {
        let FreeLine { released, slept_at, wake_after, .. } = &self.line.free;
        slept_at.store(released.load(Ordering::Relaxed), Ordering::Relaxed);
        wake_after.store((self.unread() / 2).max(1), Ordering::Relaxed);
        self.line.room.announce()
    }

    /// Puts a record back, unread, for the next consumer.
    pub fn give_back(&self, taken: Taken) {
        let mine = Word::new(taken.number, State::Taken, taken.owner).pack();
        if self.make_ready_again(self.at(taken.number), mine) {
            self.control.readable.notify_if_waiting(); // I9
        }
    }

    /// Makes a Taken record Ready again, and counts it; false when another process was faster.
    pub(super) fn make_ready_again(&self, descriptor: &Descriptor, taken: u64) -> bool {
        let ready = Word::ready_again(Word::unpack(taken).number).pack();
        // SYNC records.ready: AcqRel here, Acquire in `oldest_returned`. What `make_ready` published reaches the next consumer (I2).
        let won = descriptor.word.compare_exchange(taken, ready, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if won {
            crash_point(Point::RecordReturned);
            self.count_returned();
            self.control.counters.returned.fetch_add(1, Ordering::Relaxed);
        }
        won
    }

    /// Lets consumers look through the whole table once more (I7).
    pub(super) fn count_returned(&self) {
        // SYNC records.returned: Release here, Acquire in `find_returned`.
        self.line.read.returned.fetch_add(1, Ordering::Release);
    }

    /// What is written beside a record. The caller has taken it, or owns the lane.
    pub fn entry(&self, number: u64) -> Entry {
        let descriptor = self.at(number);
        Entry {
            start: descriptor.start.load(Ordering::Relaxed),
            bytes: descriptor.bytes.load(Ordering::Relaxed),
            stamp: Stamp {
                version: descriptor.version.load(Ordering::Relaxed),
                kind: descriptor.kind.load(Ordering::Relaxed),
                producer_id: descriptor.producer_id.load(Ordering::Relaxed),
                sequence: descriptor.sequence.load(Ordering::Relaxed),
            },
            committed_ns: descriptor.committed_ns.load(Ordering::Relaxed),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static LOOKS: Cell<usize> = const { Cell::new(0) };
    }

    /// Called for each descriptor that is looked at.
    pub(super) fn count_look() {
        LOOKS.set(LOOKS.get() + 1);
    }

    fn looks_at(work: impl FnOnce()) -> usize {
        LOOKS.set(0);
        work();
        LOOKS.get()
    }

    const DEPTH: usize = 1024;

    /// A lane with one reservation at its front, and behind it as many records as it holds.
    fn with_lane_behind_a_reservation(test: impl Fn(&Protocol<'_>, Claim)) {
        let (producer, control, lanes) = (Owner::new(0, 1), Control::default(), [Lane::default()]);
        let descriptors: Vec<Descriptor> = (0..DEPTH).map(|_| Descriptor::default()).collect();
        let records = Protocol {
            control: &control,
            lanes: &lanes,
            sessions: &[],
            descriptors: &descriptors,
            lane_bytes: 4096,
        };
        let index = records.take_lane(producer, |_| false).unwrap();
        records.open_lane(index);
        let lane = records.lane(index);
        let mut claims = (0..DEPTH).map(|_| {
            let NextNumber::Number(number) = lane.next_number() else { panic!("there is room") };
            lane.reserve(number, producer)
        });
        let front = claims.next().unwrap();
        claims.for_each(|claim| lane.commit(claim, &Entry::default()));
        test(&records, front);
    }

    #[test]
    fn records_behind_a_reservation_are_looked_at_a_few_times_each() {
        let consumer = Owner::new(1, 1);
        with_lane_behind_a_reservation(|records, _front| {
            let mut taken = Vec::new();
            let looks = looks_at(|| {
                records.try_take_many(consumer, 0, DEPTH, |_, record| taken.push(record)).unwrap();
            });
            assert_eq!(taken.len(), DEPTH - 1);
            assert!(looks <= 4 * DEPTH, "{looks} looks, all records at once");
        });
        with_lane_behind_a_reservation(|records, front| {
            let mut numbers = Vec::new();
            let mut take = || {
                let taken = records.try_take(consumer, 0).unwrap()?;
                numbers.push(taken.number);
                records.lane(0).release(taken);
                Some(())
            };
            let looks = looks_at(|| while take().is_some() {});
            assert!(looks <= (6 + WORTH_NOTING as usize) * DEPTH, "{looks} looks, one record at a time");
            records.lane(0).commit(front, &Entry::default());
            let looks = looks_at(|| while take().is_some() {});
            assert!(looks <= 4 * DEPTH, "{looks} looks for the reservation");
            assert_eq!(numbers, (1..DEPTH as u64).chain([0]).collect::<Vec<_>>());
        });
        with_lane_behind_a_reservation(|records, _front| {
            while let Some(taken) = records.try_take(consumer, 0).unwrap() {
                records.lane(0).release(taken);
            }
            let looks = looks_at(|| assert_eq!(records.has_ready(), Ok(false)));
            assert!(looks <= 4, "{looks} looks to find nothing");
        });
    }
}
